-- name: prepare_build
-- Sets the timeouts of a build: it may wait $1 for each earlier transaction, which blocks no other session, and run for
-- any length of time.
select set_config('lock_timeout', $1, false), set_config('statement_timeout', '0', false)

-- name: end_build
-- Restores the session's timeouts.
reset lock_timeout; reset statement_timeout

-- name: find_remnants
-- Finds an index named $1 of table $2 whose build was interrupted: no query uses it, but every write maintains it.
select i.indexrelid::regclass::text
from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = to_regclass($2) and c.relname = $1 and not i.indisvalid

-- name: list_holders
-- Lists the sessions that block session $1.
select concat_ws(' ', 'pid', b.pid, '(' || concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state) || ')',
    'since ' || to_char(a.xact_start at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC')
from unnest(pg_blocking_pids($1::integer)) as b (pid)
left join pg_stat_activity a on a.pid = b.pid
order by a.xact_start nulls last, b.pid
