-- name: append_batch
-- Stores one event of many items, unless the routes have changed, a key is to be freed first, or it is stored already.
-- Remembers each item that is not known yet and owes only those, numbered without gaps. The guard, the order of the keys
-- and that of the deliveries are those of append_events, with which it may race.
with guard as materialized (
    select version from boathook.registry where version = $1 for share
),
expired as materialized (
    select key from boathook.dedup where key = any ($14::uuid[]) and expires_at < now()
),
earlier as materialized (
    select id from boathook.event where id = $2
),
item as materialized (
    select i.*
    from unnest($14::uuid[], $15::bytea[], $16::text[], $17::text[], $18::integer[]) as i (key, digest, path, type, place)
    where exists (select from guard) and not exists (select from expired) and not exists (select from earlier)
),
fresh as (
    insert into boathook.dedup (key, event_id, body_sha256, expires_at, item_path)
    select key, $2, digest, now() + $13::interval, path from item order by key
    on conflict do nothing
    returning key
),
owed as materialized (
    select row_number() over (order by d.position) - 1 as ordinal, d.position, d.recipient, d.order_key, i.path, i.type
    from unnest($19::integer[], $20::text[], $21::text[]) with ordinality as d (place, recipient, order_key, position)
    join item i on i.place = d.place
    join fresh f on f.key = i.key
),
stored as (
    insert into boathook.event (
        id, source, application, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout, items)
    select $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10, $11, $12, (select count(*) from owed),
        (select json_agg(json_build_array(i.path, i.type) order by i.place) from item i join fresh f on f.key = i.key)
    where exists (select from fresh)
),
unhandled as (
    insert into boathook.unhandled (event_id, source)
    select $2, $3 where exists (select from fresh) and not exists (select from owed)
    on conflict do nothing
),
delivered as (
    insert into boathook.delivery (event_id, ordinal, recipient, order_key, is_blocked, item_path, item_type)
    select $2, o.ordinal, o.recipient, o.order_key,
        o.order_key is not null and (
            row_number() over (partition by o.recipient, o.order_key order by o.position) > 1
            or exists (
                select from boathook.delivery d
                where d.recipient = o.recipient and d.order_key = o.order_key and d.state <> 'dead')),
        o.path, o.type
    from owed o
    order by o.position
    returning is_blocked
)
select
    exists (select from guard) as is_current,
    exists (select from earlier) as is_stored,
    array(select key from expired) as expired,
    array(select key from fresh) as fresh,
    exists (select from owed) as is_owed,
    exists (select from delivered where is_blocked) as has_blocked

-- name: find_items
-- Finds which events brought these items first, and what they were.
select key, event_id, body_sha256 as digest from boathook.dedup where key = any ($1::uuid[])

-- name: record_item_conflicts
-- Keeps items whose key was seen before with another content; repeated ones are counted.
insert into boathook.conflict (
    id, event_id, source, dedup_key, differs, headers, content_type, body, body_sha256, seen)
select c.id, c.event_id, $6, c.dedup_key, 'body', $7::text::json, $8, c.body, sha256(c.body), c.seen
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::integer[]) as c (id, event_id, dedup_key, body, seen)
order by c.event_id, c.dedup_key, sha256(c.body)
on conflict (event_id, differs, dedup_key, body_sha256)
do update set seen = conflict.seen + excluded.seen, last_seen_at = now()
