-- name: insert_samples
-- Stores the metrics of a host, and returns the server's time; existing rows are kept.
with stored as (
    insert into boathook.metric_sample (step_s, at, host, series, totals, is_rolled_up)
    select 10, u.at, $1, u.series::json, u.totals::json, false
    from unnest($2::timestamptz[], $3::text[], $4::text[]) as u (at, series, totals)
    on conflict do nothing
)
select clock_timestamp()

-- name: read_totals
-- Reads totals since a time in steps of $2 seconds, and those of the finest rows that are not rolled up yet.
select at, host, totals::text as snapshot from boathook.metric_sample where step_s = $2 and at >= $1
union all
select at, host, totals::text from boathook.metric_sample where not is_rolled_up and $2 > 10 and at >= $1
order by at

-- name: read_series
-- Reads the same with the name of each source and recipient.
select at, host, series::text as snapshot from boathook.metric_sample where step_s = $2 and at >= $1
union all
select at, host, series::text from boathook.metric_sample where not is_rolled_up and $2 > 10 and at >= $1
order by at

-- name: read_latest
-- Reads the latest row of each host since a time.
select distinct on (host) host, at, series::text as snapshot
from boathook.metric_sample
where step_s = 10 and at >= $1
order by host, at desc

-- name: read_stored_since
-- Reads the finest rows that were stored after a time, and when each was stored.
select host, at, series::text as snapshot, stored_at
from boathook.metric_sample
where step_s = 10 and stored_at > $1
order by at, host

-- name: read_window
-- Reads everything since $1 once: in steps of 900 seconds before $2, of 120 before $3, and in the finest after it.
-- Finest rows that arrived late are in none of the coarser ones until they are rolled up.
select host, at, series::text as snapshot, stored_at from boathook.metric_sample where step_s = 900 and at >= $1 and at < $2
union all
select host, at, series::text, stored_at from boathook.metric_sample where step_s = 120 and at >= $2 and at < $3
union all
select host, at, series::text, stored_at from boathook.metric_sample
where step_s = 10 and (at >= $3 or (not is_rolled_up and at >= $1))
order by at, host

-- name: lock_roll_up
-- Locks the roll-up until the transaction ends: two transactions that insert the same coarser row would lose each
-- other's part.
select pg_advisory_xact_lock(hashtextextended('boathook.samples', 0))

-- name: take_rows
-- Picks rows that are not rolled up yet, oldest first.
select at, host, series::text as snapshot from boathook.metric_sample
where not is_rolled_up
order by at, host
limit $1
for update

-- name: read_coarser
-- Reads the existing coarser rows with the given times and hosts.
select s.at, s.host, s.series::text as snapshot
from unnest($2::timestamptz[], $3::text[]) as u (at, host)
join boathook.metric_sample s on s.step_s = $1 and s.at = u.at and s.host = u.host
for update of s

-- name: write_coarser
-- Writes coarser rows over the existing ones.
insert into boathook.metric_sample (step_s, at, host, series, totals, is_rolled_up)
select $1, u.at, u.host, u.series::json, u.totals::json, true
from unnest($2::timestamptz[], $3::text[], $4::text[], $5::text[]) as u (at, host, series, totals)
on conflict (step_s, at, host) do update set series = excluded.series, totals = excluded.totals

-- name: mark_rolled_up
-- Marks rows as rolled up.
update boathook.metric_sample s set is_rolled_up = true
from unnest($1::timestamptz[], $2::text[]) as u (at, host)
where s.step_s = 10 and s.at = u.at and s.host = u.host

-- name: drop_old
-- Deletes rows that are older than the retention of their step.
delete from boathook.metric_sample where step_s = $1 and is_rolled_up and at < now() - make_interval(secs => $2::float8)
