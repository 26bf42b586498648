-- name: read_routable
-- Reads events as input for routing, by age; skips those without content. For an event stored before batches were
-- recorded, its dedup key shows that it is not a batch: it is the key of the whole event.
select e.id, e.source, e.application, e.type, e.headers, octet_length(e.body) as size,
    case when a.organization = $2 then array_remove(array[a.uid, a.imported_id], null) end as other_names,
    case when e.items::text <> '[]' then e.items end as items,
    e.items::text = '[]' and e.source is not null and not exists (
        select from boathook.dedup d
        where d.event_id = e.id and d.item_path is null and d.key = encode(substr(sha256(
            convert_to(e.source, 'UTF8') || '\x00'::bytea || convert_to(e.dedup_key, 'UTF8')), 1, 16), 'hex')::uuid
    ) as is_unclear
from boathook.event e
left join boathook.application a on a.id = boathook.read_id('app', e.application)
where e.id = any ($1::uuid[]) and e.expunged_at is null and coalesce(e.content_until > now(), true)
order by e.id

-- name: read_bodies
-- Reads the bytes of these events.
select id, body from boathook.event where id = any ($1::uuid[])

-- name: list_pending
-- Lists the deliveries of these events: of an item or, without a path, of the whole event.
select distinct event_id, item_path, item_type
from (
    select event_id, item_path, item_type from boathook.delivery where event_id = any ($1::uuid[])
    union all
    select event_id, item_path, item_type from boathook.delivery_archive where event_id = any ($1::uuid[])
) as known

-- name: list_recipients
-- Lists the recipients of an event, or of items of it.
select recipient, item_path from boathook.delivery where event_id = $1
union
select recipient, item_path from boathook.delivery_archive where event_id = $1

-- name: add_routed
-- Adds deliveries of events, or items of them, to handlers that never had one: event, recipient, order key, item path
-- and type; one every $8 seconds from $6, after $7 earlier ones. If a dead letter of an event was purged, its recipient
-- is unknown: such an event gets no delivery, unless an operator has named the handler ($9). Returns what was added
-- and, without a recipient, the events that were skipped.
with wanted as materialized (
    select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[])
        with ordinality as w (event_id, recipient, order_key, item_path, item_type, place)
),
known as materialized (
    select event_id, ordinal::integer as ordinal, recipient, item_path from boathook.delivery where event_id = any ($1::uuid[])
    union all
    select event_id, ordinal::integer, recipient, item_path from boathook.delivery_archive where event_id = any ($1::uuid[])
),
fresh as materialized (
    select w.* from wanted w
    where not exists (
        select from known k
        where k.event_id = w.event_id and k.recipient = w.recipient and k.item_path is not distinct from w.item_path)
),
counted as (
    select e.id as event_id, greatest(e.fanout, coalesce(max(k.ordinal) + 1, 0)) as next, count(k.ordinal) as there
    from boathook.event e left join known k on k.event_id = e.id
    where e.id in (select event_id from fresh)
    group by e.id, e.fanout
),
standing as materialized (
    select event_id, next, not $9::boolean and (there <> next or exists (
        select from boathook.audit a
        where a.action = $10 and a.subject = boathook.show_id('dlv', event_id) || '_' || next)) as is_left
    from counted
),
planned as (
    select f.event_id, s.next + row_number() over (partition by f.event_id order by f.place) - 1 as ordinal,
        f.recipient, f.order_key, f.item_path, f.item_type,
        greatest(now(), $6::timestamptz + make_interval(
            secs => $8::float8 * ($7::integer + row_number() over (order by f.place) - 1))) as due_at
    from fresh f join standing s on s.event_id = f.event_id
    where not s.is_left
),
added as (
    select d.* from {add_planned}
),
handled as (
    delete from boathook.unhandled where event_id in (select event_id from added)
)
select event_id, recipient, order_key from added
union all
select event_id, null, null from standing where is_left

-- name: record_routed
-- Records that an operator had events rerouted, and the new recipients of each.
insert into boathook.audit (actor, action, subject, note)
select $1, $2, subject, note from unnest($3::text[], $4::text[]) as u (subject, note)

-- name: count_unhandled
-- Counts the unhandled events since an id, up to $2, by source or name.
select subject, count(*) as number
from (select subject from boathook.unhandled where event_id >= $1 order by event_id desc limit $2) as latest
group by subject
order by number desc, subject
