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
