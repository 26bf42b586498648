-- fragment: stored_event
-- The columns that to_event reads.
id, source, application, type, dedup_key, grade, origin, accepted_at, headers, content_type, body, same_body_as

-- fragment: current_routes
-- The guard locks the routes' version against a change until this commits.
guard as materialized (
    select version from boathook.route_version where version = $1 for share
)

-- fragment: store_new
-- Stores the events of `new`, and returns what became of the batch.
stored as (
    select boathook.store_events(
        p_ids => $2, p_sources => $3::text[], p_applications => $4::text[], p_types => $5::text[],
        p_dedup_keys => $6::text[], p_grades => $9::text[], p_origins => $10::text[], p_headers => $11::text[],
        p_content_types => $12::text[], p_bodies => $13::bytea[], p_hashes => $14, p_fanouts => $15::smallint[],
        p_new => case when not is_all then ids end, d_events => $17::uuid[], d_ordinals => $18::smallint[],
        d_recipients => $19::text[], d_order_keys => $20::text[], p_has_order => $21::boolean,
        p_has_unhandled => $22::boolean, p_same_body_as => $23::uuid[]) as has_blocked
    from new where ids is not null
)
select
    exists (select from guard) as is_current,
    coalesce((select ids from new), '{}') as fresh,
    coalesce((select has_blocked from stored), false) as has_blocked

-- name: append_events
-- Stores a batch of events with their deliveries, unless the routes have changed; returns the new ones. A column whose
-- values are all equal may be given as one of them.
-- Of the events with one signed body, only the first holds its replay key; the others come with none, and name the first
-- in $23, which is null if there are none. $24 has the windows of sources that remember keys from the acceptance on; it
-- is null if there are none.
-- Keys are inserted in order, so that the batches of two gateways cannot deadlock.
with {current_routes},
fresh as (
    insert into boathook.dedup (key, replay_key, event_id, body_sha256, expires_at)
    select key, replay_key, id, body_sha256, coalesce(boathook.id_time(id) + since_accepted, now() + memory)
    from unnest(
        $2::uuid[], boathook.fill($7::uuid[], $2), boathook.fill($8::uuid[], $2), boathook.fill($14::bytea[], $2),
        boathook.fill($16::interval[], $2), $24::interval[]
    ) as input (id, key, replay_key, body_sha256, memory, since_accepted)
    where exists (select from guard)
    order by key
    on conflict do nothing
    returning event_id
),
new as (
    select array_agg(event_id) as ids, count(*) = cardinality($2) as is_all from fresh
),
{store_new}

-- name: append_object_events
-- Stores a batch of events with objects as `append_events` does, with the objects in $8. Also returns, for each event,
-- the one that it repeats, or itself.
with {current_routes},
claimed as materialized (
    select c.* from guard
    cross join lateral boathook.claim_objects(
        $2::uuid[], boathook.fill($8::uuid[], $2), boathook.fill($7::uuid[], $2), boathook.fill($14::bytea[], $2),
        boathook.fill($16::interval[], $2)) as c
),
new as (
    select array_agg(id) filter (where is_new) as ids, bool_and(is_new) as is_all from claimed
),
{store_new},
    array(select id from claimed order by id) as ids,
    array(select first_id from claimed order by id) as first_ids,
    array(select first_sha256 from claimed order by id) as first_hashes,
    array(select is_elsewhere from claimed order by id) as elsewhere

-- name: find_seen
-- Finds the dedup entry of each key or, without one, of each replay key. An entry expires by the time in $3, or by now.
select distinct on (i.position)
    i.position, d.event_id, d.body_sha256, d.key = i.key as is_same_key,
    d.expires_at <= coalesce(i.accepted_at, now()) as is_expired, d.key as found, d.home is not null as is_elsewhere
from unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) with ordinality as i (key, replay_key, accepted_at, position)
cross join lateral (
    select * from boathook.dedup where key = i.key
    union all
    select * from boathook.dedup where replay_key = i.replay_key
) as d
order by i.position, d.key = i.key desc

-- name: find_stored
-- Finds which of these events are stored, and waits for a synchronous standby like the transaction that stored them.
select id, pg_logical_emit_message(true, 'boathook', '') from boathook.event where id = any ($1::uuid[])

-- name: record_conflict
-- Stores a request whose key was seen with another body, or whose body with another key; repeated ones are counted.
insert into boathook.conflict (
    id, event_id, source, application, dedup_key, differs, headers, content_type, body, body_sha256, type, grade)
values ($1, $2, $3, $4, $5, $6, $7::json, $8, $9, $10, $11, $12)
on conflict (event_id, differs, dedup_key, body_sha256)
do update set seen = conflict.seen + 1, last_seen_at = now()

-- name: find_unknown
-- Finds which of these events, given with their keys, are neither stored nor known by one of their keys. An event with an
-- object is known while it repeats the newest one of it.
select offered.id
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[]) as offered (id, key, replay_key, object)
where not exists (select from boathook.dedup d where d.key = offered.key and offered.object is null)
    and not exists (select from boathook.dedup d where d.key = offered.object and d.newest_key = offered.key)
    and not exists (select from boathook.dedup d where d.replay_key = offered.replay_key)
    and not exists (select from boathook.event e where e.id = offered.id)

-- name: get_event
-- Reads one event with its bytes.
select {stored_event}
from boathook.event where id = $1

-- name: get_body
-- Reads one event's bytes.
select body from boathook.event where id = $1
