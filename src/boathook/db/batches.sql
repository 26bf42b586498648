-- name: append_batch
-- Stores one event of many items, unless the routes have changed, a key must be deleted first, or the event is stored
-- already. Stores the keys of new items and creates deliveries only for those, numbered without gaps. The guard, the
-- order of the keys and that of the deliveries are the same as in append_events, which may run concurrently.
with guard as materialized (
    select version from boathook.route_version where version = $1 for share
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
added as materialized (
    select row_number() over (order by d.position) - 1 as ordinal, d.recipient, d.order_key, i.path, i.type
    from unnest($19::integer[], $20::text[], $21::text[]) with ordinality as d (place, recipient, order_key, position)
    join item i on i.place = d.place
    join fresh f on f.key = i.key
),
stored as (
    select boathook.store_events(
        p_ids => array[$2::uuid], p_sources => array[$3::text], p_applications => array[$4::text],
        p_types => array[$5::text], p_dedup_keys => array[$6::text], p_grades => array[$7::text],
        p_origins => array[$8::text], p_headers => array[$9::text], p_content_types => array[$10::text],
        p_bodies => array[$11::bytea], p_hashes => array[$12::bytea], p_fanouts => array[d.number],
        p_items => array[i.items], d_events => d.events, d_ordinals => d.ordinals, d_recipients => d.recipients,
        d_order_keys => d.order_keys, d_paths => d.paths, d_types => d.types, p_has_order => d.has_order,
        p_has_unhandled => true) as has_blocked
    from (
            select count(*)::smallint as number, count(order_key) > 0 as has_order,
                array_agg($2::uuid order by ordinal) as events,
                array_agg(ordinal::smallint order by ordinal) as ordinals,
                array_agg(recipient order by ordinal) as recipients,
                array_agg(order_key order by ordinal) as order_keys,
                array_agg(path order by ordinal) as paths,
                array_agg(type order by ordinal) as types
            from added
        ) as d,
        (
            select json_agg(json_build_array(i.path, i.type) order by i.place)::text as items
            from item i join fresh f on f.key = i.key
        ) as i
    where i.items is not null
)
select
    exists (select from guard) as is_current,
    exists (select from earlier) as is_stored,
    array(select key from expired) as expired,
    array(select key from fresh) as fresh,
    exists (select from added) as is_added,
    coalesce((select has_blocked from stored), false) as has_blocked

-- name: find_items
-- Finds the event that first brought each of these items, and the item's digest.
select key, event_id, body_sha256 as digest from boathook.dedup where key = any ($1::uuid[])

-- name: record_item_conflicts
-- Stores items whose key was seen before with other content; repeated ones are counted.
insert into boathook.conflict (
    id, event_id, source, dedup_key, type, grade, differs, headers, content_type, body, body_sha256, seen)
select c.id, c.event_id, $7, c.dedup_key, c.type, $10, 'body', $8::text::json, $9, c.body, sha256(c.body), c.seen
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::integer[])
    as c (id, event_id, dedup_key, type, body, seen)
order by c.event_id, c.dedup_key, sha256(c.body)
on conflict (event_id, differs, dedup_key, body_sha256)
do update set seen = conflict.seen + excluded.seen, last_seen_at = now()
