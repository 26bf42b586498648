-- name: read_chain
-- Reads the chain that leads to an event, the first one first, up to $2 links: of each event the delivery whose handler
-- published the next one.
with recursive chain as (
    select $1::uuid as event_id, null::integer as ordinal, 0 as step
    union all
    select c.cause_id, c.cause_ordinal::integer, chain.step + 1
    from chain join boathook.event_cause c on c.event_id = chain.event_id
    where chain.step < $2
)
select chain.event_id, chain.ordinal, e.source, e.application, e.type, e.accepted_at, d.recipient
from chain
left join lateral (
    select source, application, type, accepted_at from boathook.event where id = chain.event_id limit 1
) as e on true
left join lateral (
    (select recipient from boathook.delivery where event_id = chain.event_id and ordinal = chain.ordinal)
    union all
    (select recipient from boathook.delivery_archive where event_id = chain.event_id and ordinal = chain.ordinal)
    limit 1
) as d on true
order by chain.step desc
