-- Queries for pages about one recipient: a handler or an endpoint. Each reads a bounded number of rows by index.

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
