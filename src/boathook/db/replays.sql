-- name: lock_event
-- Locks an event for replays of any kind until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('boathook.replay:' || $1::uuid::text, 0))

-- name: owe_again
-- Adds a delivery of an event, or an item of it, to the recipient of an ended delivery. It is added only if the
-- recipient has no open delivery or dead letter of it, its content exists, and the recipient accepts deliveries;
-- returns these conditions and the new delivery.
with ended as materialized (
    select recipient, order_key, item_path, item_type from boathook.delivery_archive where event_id = $1 and ordinal = $2
),
known as materialized (
    select ordinal::integer as ordinal, recipient, item_path, true as is_open from boathook.delivery where event_id = $1
    union all
    select ordinal, recipient, item_path, false from boathook.delivery_archive where event_id = $1
),
standing as materialized (
    select e.expunged_at is not null or coalesce(e.content_until < now(), false) as is_gone,
        boathook.accepts_deliveries(o.recipient) as takes,
        exists (
            select from known k
            where k.is_open and k.recipient = o.recipient and k.item_path is not distinct from o.item_path) as is_open,
        greatest(e.fanout, (select max(ordinal) + 1 from known)) as next,
        o.*
    from ended o join boathook.event e on e.id = $1
),
made as (
    select d.ordinal from (
            select array_agg(next::bigint) as ordinals, array_agg(recipient) as recipients,
                array_agg(order_key) as order_keys, array_agg(item_path) as paths, array_agg(item_type) as types
            from standing where takes and not is_gone and not is_open
        ) as p, boathook.add_deliveries(
            array[$1::uuid], p.ordinals, p.recipients, p.order_keys, null, p.paths, p.types, false) as d
    where p.ordinals is not null
)
select recipient, order_key, is_gone, takes, is_open, (select ordinal from made) as made from standing
