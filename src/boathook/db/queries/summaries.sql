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

-- name: list_latest_by_source
-- Reads the latest event of each source, among the latest events of all.
select distinct on (source) source, id, type
from (select id, source, type from boathook.event order by id desc limit $1) as latest
where source is not null
order by source, id desc

-- name: find_latest_of_source
-- Reads the latest event of one source, among the latest events of all; stops at the first that it finds.
select id, type
from (select id, source, type from boathook.event order by id desc limit $1) as latest
where source = $2
order by id desc
limit 1

-- name: list_refusals
-- Reads the latest rejection at each of these sources, and the number of rejections since an id, up to a limit.
select s.name as source, r.id, r.reason, r.detail, (
    select count(*) from (
        select from boathook.rejection c where c.source = s.name and c.id >= $2 limit $3) as counted) as lately
from unnest($1::text[]) as s (name)
left join lateral (
    select id, reason, detail from boathook.rejection where source = s.name order by id desc limit 1) as r on true

-- name: count_backlog
-- Counts a recipient's pending deliveries and dead letters, each up to $2, and finds since when its oldest one is due.
select
    (select count(*) from (
        select from boathook.delivery where recipient = $1 and state = 'pending' and not is_blocked limit $2) as o)
    + (select count(*) from (
        select from boathook.delivery
        where recipient = $1 and order_key is not null and state = 'pending' and is_blocked limit $2) as o) as pending,
    (select count(*) from (
        select from boathook.delivery where recipient = $1 and state = 'dead' limit $2) as o) as dead,
    (
        select due_at from boathook.delivery
        where recipient = $1 and state = 'pending' and not is_blocked and due_at <= now()
        order by due_at limit 1
    ) as oldest_due_at

-- name: list_failures
-- Lists a recipient's latest dead letters, and after them the failed deliveries among the next $3 scheduled ones.
select l.event_id, l.ordinal::integer as ordinal, l.state, l.attempts, l.at, coalesce(l.code, '') as code,
    left(l.error, 300) as error, coalesce(l.item_type, e.type) as type
from (
    (
        select event_id, ordinal, state, attempts, dead_at as at, code, error, item_type
        from boathook.delivery
        where recipient = $1 and state = 'dead'
        order by dead_at desc limit $2
    )
    union all
    (
        select event_id, ordinal, state, attempts, due_at, code, error, item_type
        from (
            select * from boathook.delivery
            where recipient = $1 and state = 'pending' and not is_blocked and due_at > now()
            order by due_at limit $3
        ) as scheduled
        where code is not null
        order by due_at limit $2
    )
) as l
join boathook.event e on e.id = l.event_id
order by l.state, case when l.state = 'dead' then l.at end desc, l.at
