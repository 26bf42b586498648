-- maintenance.py replaces words in braces by names of boathook's tables.

-- name: try_lock
-- Takes the maintenance lock for this session, or returns false.
select pg_try_advisory_lock(hashtextextended('boathook.maintenance', 0))

-- name: release_lock
-- Releases the maintenance lock.
select pg_advisory_unlock(hashtextextended('boathook.maintenance', 0))

-- name: limit_waits
-- Limits the waits of this transaction: sessions that queue behind its lock requests wait as long as it does.
select set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)

-- name: find_unpartitioned
-- Finds the weeks, not older than $1, with rows in a default partition, and the number of rows.
select date_trunc('week', boathook.id_time({key}) at time zone 'UTC')::date as monday, count(*) as rows
from boathook.{parent}_default
where {key} >= boathook.min_id($1)
group by 1
order by 1

-- name: lock_default
-- Locks a default partition while its rows move.
lock table boathook.{parent}_default in access exclusive mode

-- name: create_week
-- Creates a table that can become a partition.
create table boathook.{child} (like boathook.{parent} including all)

-- name: move_unpartitioned
-- Moves a week's rows out of the default partition.
with moved as (
    delete from boathook.{parent}_default
    where {key} >= boathook.min_id($1) and {key} < boathook.min_id($1 + interval '7 days')
    returning *
)
insert into boathook.{child} select * from moved

-- name: attach_week
-- Makes the table a partition; bounds cannot be parameters.
do $$
begin
    execute format(
        'alter table boathook.{parent} attach partition boathook.{child} for values from (%L) to (%L)',
        boathook.min_id('{monday}'), boathook.min_id(timestamptz '{monday}' + interval '7 days'));
end $$

-- name: ensure_partitions
-- Creates the partitions of the coming weeks.
select boathook.ensure_partitions($1)

-- name: find_cutoff
-- Returns the Monday before which every week is completely older than $1 days.
select date_trunc('week', (now() - make_interval(secs => 86400 * $1::float8)) at time zone 'UTC') at time zone 'UTC'

-- name: list_old_partitions
-- Lists the weekly partitions before a Monday, by week.
with weekly as materialized (
    select p.relname as parent, c.relname::text as child
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    join pg_class p on p.oid = i.inhparent
    where p.oid in (
            'boathook.event'::regclass, 'boathook.event_cause'::regclass, 'boathook.attempt'::regclass,
            'boathook.delivery_archive'::regclass, 'boathook.side_effect'::regclass, 'boathook.reply'::regclass)
        and c.relname ~ ('^' || p.relname || '_[0-9]{8}$')
)
select to_date(right(child, 8), 'YYYYMMDD') as monday, array_agg(child order by parent) as children
from weekly
group by 1
having to_date(right(child, 8), 'YYYYMMDD') < ($1 at time zone 'UTC')::date
order by 1

-- name: hold_writers
-- Blocks writes to tables of an old week; reads continue.
lock table {children} in share mode

-- name: hold_everyone
-- Blocks all access to tables of an old week.
lock table {children} in access exclusive mode

-- name: is_week_pending
-- Returns whether a week has unfinished deliveries or undecided dead letters.
select exists (
    select from boathook.delivery
    where event_id >= boathook.min_id($1) and event_id < boathook.min_id($1 + interval '7 days'))

-- name: count_rows
-- Counts one partition.
select count(*) from boathook.{child}

-- name: empty_week
-- Empties tables of an old week, which locks only these and not their parents.
truncate {children}

-- name: drop_week
-- Drops tables of an old week.
drop table {children}

-- name: pick_old_events
-- Picks a partition's old events without deliveries in the queue, and locks them against replays until this commits.
with old as materialized (
    select e.id from boathook.{child} e
    where e.id < boathook.min_id($1) and not exists (select from boathook.delivery d where d.event_id = e.id)
    order by e.id
    limit $2
)
select id from old where pg_try_advisory_xact_lock(hashtextextended('boathook.replay:' || id, 0))

-- name: delete_events
-- Deletes the picked events, except those that got deliveries before they were picked.
delete from boathook.event e
where e.id = any ($1::uuid[]) and not exists (select from boathook.delivery d where d.event_id = e.id)
returning e.id

-- name: delete_of_events
-- Deletes the rows of deleted events.
with gone as (
    delete from boathook.{parent} where event_id = any ($1::uuid[]) returning 1
)
select count(*) from gone

-- name: pick_expired_content
-- Picks messages with expired content and no unfinished delivery, and locks them against replays until this commits.
-- Dead letters do not count: they may wait for a decision forever.
with due as materialized (
    select e.id from boathook.event e
    where e.content_until < now() and e.expunged_at is null
        and not exists (select from boathook.delivery d where d.event_id = e.id and d.state <> 'dead')
    order by e.content_until
    limit $1
)
select id from due where pg_try_advisory_xact_lock(hashtextextended('boathook.replay:' || id, 0))

-- name: expunge_content
-- Deletes the content of the picked messages, except those that got deliveries before they were picked.
with gone as (
    update boathook.event e set body = '', expunged_at = now()
    where e.id = any ($1::uuid[]) and e.expunged_at is null
        and not exists (select from boathook.delivery d where d.event_id = e.id and d.state <> 'dead')
    returning 1
)
select count(*) from gone

-- name: measure_dedup
-- Returns the number of pages of the dedup table.
select pg_relation_size('boathook.dedup') / current_setting('block_size')::bigint

-- name: forget_expired_keys
-- Deletes expired keys in the pages from $1 up to but not including $2, skipping locked ones.
with expired as (
    select key from boathook.dedup
    where ctid >= format('(%s,0)', $1::bigint)::tid and ctid < format('(%s,0)', $2::bigint)::tid and expires_at < now()
    limit $3
    for update skip locked
),
gone as (
    delete from boathook.dedup d using expired x where d.key = x.key returning 1
)
select 'expired' as reason, count(*) as dropped from gone

-- name: drop_old_conflicts
-- Deletes conflicts that were not seen again for $1 days.
with old as (
    select id from boathook.conflict
    where last_seen_at < now() - make_interval(secs => 86400 * $1::float8)
    limit $2
    for update skip locked
),
gone as (
    delete from boathook.conflict c using old o where c.id = o.id returning 1
)
select 'age' as reason, count(*) as dropped from gone

-- name: drop_old_marks
-- Deletes the marks of series that have not advanced for $1 days.
with gone as (
    delete from boathook.buffer_mark
    where series in (
        select series from boathook.buffer_mark
        where changed_at < now() - make_interval(secs => 86400 * $1::float8) limit $2)
    returning 1
)
select 'age' as reason, count(*) as dropped from gone

-- name: forget_unhandled
-- Deletes the unhandled marks of events older than $1 days; retention deletes the events themselves.
with gone as (
    delete from boathook.unhandled
    where event_id in (
        select event_id from boathook.unhandled
        where event_id < boathook.min_id(now() - make_interval(secs => 86400 * $1::float8)) order by event_id limit $2)
    returning 1
)
select 'age' as reason, count(*) as dropped from gone

-- name: bound_rejections
-- Deletes rejections older than $1 days, and the oldest of each source beyond $2 in number or $3 bytes of body. Those with
-- one of the reasons $4, of which only the head is stored, are bounded for themselves, as are those of no source.
with ranked as (
    select id, row_number() over newest as place, sum(octet_length(body)) over newest as bytes
    from boathook.rejection
    window newest as (partition by source, reason = any ($4::text[]) order by id desc)
),
beyond as (
    select id, case
        when id < boathook.min_id(now() - make_interval(secs => 86400 * $1::float8)) then 'age'
        when place > $2::bigint then 'count'
        when bytes > $3::bigint then 'bytes' end as reason
    from ranked
),
picked as (
    select r.id, b.reason
    from boathook.rejection r join beyond b on b.id = r.id
    where b.reason is not null
    order by r.id
    limit $5
    for update of r skip locked
),
gone as (
    delete from boathook.rejection r using picked p where r.id = p.id returning p.reason
)
select reason, count(*) as dropped from gone group by reason

-- name: record_dropped
-- Adds to today's number of deleted rows, of one kind for one reason.
with today as (
    update boathook.purge_log
    set dropped = dropped + $3, at = now()
    where id = (
        select max(id) from boathook.purge_log
        where kind = $1 and reason = $2 and at >= date_trunc('day', now() at time zone 'UTC') at time zone 'UTC')
    returning 1
)
insert into boathook.purge_log (kind, reason, dropped)
select $1, $2, $3 where not exists (select from today)
