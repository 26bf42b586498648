-- name: read_latest_events
-- Reads the latest events.
select e.id, coalesce(e.source, e.application, '') as origin, e.source is null as is_published, e.type, e.dedup_key, e.accepted_at
from boathook.event e
order by e.id desc
limit $1

-- name: read_latest_dead
-- Reads the latest dead letters.
select d.event_id, d.ordinal::integer as ordinal, d.recipient, d.code, left(d.error, 300) as error, d.dead_at
from boathook.delivery d
where d.state = 'dead'
order by d.dead_at desc
limit $1

-- name: count_open
-- Counts what operators have to look at; each count stops at a limit, so that it stays fast.
select
    (select count(*) from (select from boathook.delivery where state = 'dead' limit $1) d)::integer as dead_letters,
    (
        select count(*)
        from (
            select from boathook.rejection
            where id >= boathook.min_id(now() - interval '1 day') and event_id is null
            limit $1
        ) r
    )::integer as rejections,
    (
        select count(*)
        from (select from boathook.conflict where id >= boathook.min_id(now() - interval '1 day') limit $1) c
    )::integer as conflicts,
    count(*)::integer as firing,
    (count(*) filter (where severity = 'critical'))::integer as critical
from boathook.alert
where state in ('firing', 'clearing') and not is_silenced
