-- name: prepare_build
-- Sets the bounds of a build: it may wait $1 for each transaction that began before it, which holds up nobody, and take as
-- long as it takes.
select set_config('lock_timeout', $1, false), set_config('statement_timeout', '0', false)

-- name: end_build
-- Gives the session the bounds back that it came with.
reset lock_timeout; reset statement_timeout

-- name: find_remnants
-- Finds an index named $1 of table $2 that was not built to its end: it answers no query, and costs each writer all the same.
select i.indexrelid::regclass::text
from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = to_regclass($2) and c.relname = $1 and not i.indisvalid

-- name: list_holders
-- Lists whom the session $1 waits for.
select concat_ws(' ', 'pid', b.pid, '(' || concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state) || ')',
    'since ' || to_char(a.xact_start at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC')
from unnest(pg_blocking_pids($1::integer)) as b (pid)
left join pg_stat_activity a on a.pid = b.pid
order by a.xact_start nulls last, b.pid
