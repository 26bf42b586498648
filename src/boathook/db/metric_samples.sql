-- name: keep_samples
-- Keeps what a host has counted; what is there already was told before.
insert into boathook.sample (step_s, at, host, tally, summary, is_rolled_up)
select 15, u.at, $1, u.tally::json, u.summary::json, false
from unnest($2::timestamptz[], $3::text[], $4::text[]) as u (at, tally, summary)
on conflict do nothing

-- name: read_samples
-- Reads summaries since a moment in steps of $2 seconds, and those of the finest rows that are not in those yet.
select at, host, summary::text as tally from boathook.sample where step_s = $2 and at >= $1
union all
select at, host, summary::text from boathook.sample where not is_rolled_up and $2 > 15 and at >= $1
order by at

-- name: read_latest
-- Reads the latest row of each host since a moment.
select distinct on (host) host, at, tally::text as tally
from boathook.sample
where step_s = 15 and at >= $1
order by host, at desc

-- name: take_turn
-- Lets nobody else roll rows up until the transaction ends: two who begin the same coarser row would each lose the other's part.
select pg_advisory_xact_lock(hashtextextended('boathook.samples', 0))

-- name: take_rows
-- Picks rows that are not in the coarser ones yet, the oldest first.
select at, host, tally::text as tally from boathook.sample
where not is_rolled_up
order by at, host
limit $1
for update

-- name: read_coarser
-- Reads what the coarser rows hold already, at the given places.
select s.at, s.host, s.tally::text as tally
from unnest($2::timestamptz[], $3::text[]) as u (at, host)
join boathook.sample s on s.step_s = $1 and s.at = u.at and s.host = u.host
for update of s

-- name: write_coarser
-- Writes coarser rows over what they held.
insert into boathook.sample (step_s, at, host, tally, summary, is_rolled_up)
select $1, u.at, u.host, u.tally::json, u.summary::json, true
from unnest($2::timestamptz[], $3::text[], $4::text[], $5::text[]) as u (at, host, tally, summary)
on conflict (step_s, at, host) do update set tally = excluded.tally, summary = excluded.summary

-- name: mark_rolled_up
-- Notes that rows are in the coarser ones.
update boathook.sample s set is_rolled_up = true
from unnest($1::timestamptz[], $2::text[]) as u (at, host)
where s.step_s = 15 and s.at = u.at and s.host = u.host

-- name: drop_old
-- Drops what is older than its step is kept for.
delete from boathook.sample where step_s = $1 and is_rolled_up and at < now() - make_interval(secs => $2::float8)
