-- event_search.py replaces words in braces.
--
-- A scan reads the next $3 rows below $1 and not below $2, newest first: it costs no more than that, whatever the
-- filter. Filters apply after it, so that a step with few matches is as short as one with many.

-- name: walk_events
-- All events.
select e.id, e.source, e.application, e.type, e.dedup_key, octet_length(e.body) as size
from boathook.event e where e.id < $1 and e.id >= $2 order by e.id desc limit $3

-- name: walk_unhandled
-- Events that no handler matched.
select e.id, e.source, e.application, e.type, e.dedup_key, octet_length(e.body) as size
from boathook.unhandled u join boathook.event e on e.id = u.event_id
where u.event_id < $1 and u.event_id >= $2 order by u.event_id desc limit $3

-- name: walk_application
-- Events of an application, which may be stored under several names.
select found.*
from unnest((select boathook.application_names($5))) as name
cross join lateral (
    select e.id, e.source, e.application, e.type, e.dedup_key, octet_length(e.body) as size from boathook.event e
    where e.application = name and e.id < $1 and e.id >= $2 order by e.id desc limit $3
) as found
order by found.id desc limit $3

-- name: walk_open
-- Open deliveries and dead letters.
select d.event_id as id, d.state from boathook.delivery d
where d.event_id < $1 and d.event_id >= $2 order by d.event_id desc, d.ordinal desc limit $3

-- name: walk_ended
-- Deliveries that succeeded or were ignored.
select o.event_id as id, o.state from boathook.delivery_archive o
where o.event_id < $1 and o.event_id >= $2 order by o.event_id desc, o.ordinal desc limit $3

-- name: events_of_deliveries
-- The events of scanned deliveries in the requested state.
select e.id, e.source, e.application, e.type, e.dedup_key, octet_length(e.body) as size
from (select distinct id from walked where state = $8) as w
join boathook.event e on e.id = w.id

-- name: take_step
-- Takes one step of a scan: returns the number of scanned rows, the last of them, and the matching events, newest
-- first, with the size of their bodies. Filters: source, application, type pattern, dedup key, state, and the
-- organization they belong to ($10); null matches everything. Only a batch ($9) may have items of other types than its
-- own.
with walked as materialized ({walk}),
fitting as (
    select e.id, e.size
    from ({events}) as e
    where ($4::text is null or e.source = $4)
        and ($5::text is null or e.application = any ((select boathook.application_names($5))::text[]))
        and ($6::text is null or e.type like $6 or (e.type = $9 and (
            exists (select from boathook.delivery d where d.event_id = e.id and d.item_type like $6)
            or exists (select from boathook.delivery_archive o where o.event_id = e.id and o.item_type like $6)
            or exists (
                select from boathook.event b cross join lateral json_array_elements(b.items) as i (item)
                where b.id = e.id and i.item ->> 1 like $6))))
        and ($7::text is null or e.dedup_key = $7)
        and ($10::text is null or {organization} = $10)
        {standing}
)
select
    (select count(*) from walked) as looked,
    (select id from walked order by id limit 1) as last,
    coalesce((select array_agg(id order by id desc) from fitting), '{}') as ids,
    coalesce((select array_agg(size order by id desc) from fitting), '{}') as sizes

-- name: stand_so
-- The events with a delivery in the requested state.
and ($8::text is null
    or exists (select from boathook.delivery d where d.event_id = e.id and d.state = $8)
    or exists (select from boathook.delivery_archive o where o.event_id = e.id and o.state = $8))

-- name: read_contents
-- Reads what a search compares of these events.
select e.id, e.type, e.dedup_key, e.body from boathook.event e where e.id = any ($1::uuid[])

-- name: select_matching
-- Returns which of these events have a dedup key and a delivery in a state, and belong to an organization, with the
-- size of their bodies; null matches everything.
select e.id, octet_length(e.body) as size
from boathook.event e
where e.id = any ($1::uuid[])
    and ($2::text is null or e.dedup_key = $2)
    and ($3::text is null
        or exists (select from boathook.delivery d where d.event_id = e.id and d.state = $3)
        or exists (select from boathook.delivery_archive o where o.event_id = e.id and o.state = $3))
    and ($4::text is null or {organization} = $4)
order by e.id

-- name: page_events
-- Reads the next events of a selection, oldest first.
select e.id
from boathook.event e
where {selected_event}
    and ($6::uuid is null or e.id > $6)
order by e.id
limit $7

-- name: count_events
-- Counts the events of a selection, up to $6 unless it is null.
select count(*) from (
    select from boathook.event e
    where {selected_event}
    limit $6::bigint
) as those

-- name: list_types
-- Lists types that contain $1, ignoring case: names of the catalog and types of the newest events.
select type
from (
    select name as type from boathook.event_type
    union
    select type from (select type from boathook.event order by id desc limit 1000) as latest
) as known
where strpos(lower(type), lower($1)) > 0
order by type
limit $2

-- name: limit_statement
-- Sets the statement timeout of this transaction.
select set_config('statement_timeout', $1, true)

-- name: read_rows
-- Reads these events without their bytes, newest first, and the number of their deliveries by state; of an event with
-- very many deliveries, the first thousand are counted.
select {event_columns},
    s.pending, s.leased, s.succeeded, s.ignored, s.dead
from boathook.event e
cross join lateral (
    select
        count(*) filter (where state = 'pending') as pending, count(*) filter (where state = 'leased') as leased,
        count(*) filter (where state = 'succeeded') as succeeded, count(*) filter (where state = 'ignored') as ignored,
        count(*) filter (where state = 'dead') as dead
    from (
        (select state from boathook.delivery d where d.event_id = e.id limit 1000)
        union all
        (select state from boathook.delivery_archive o where o.event_id = e.id limit 1000)
    ) as known
) as s
where e.id = any ($1::uuid[])
order by e.id desc

-- name: find_keys
-- Finds the events with these dedup keys, and the item of the event that each key belongs to.
select event_id, item_path from boathook.dedup where key = any ($1::uuid[])

-- name: find_message_keys
-- Finds the same for messages of applications, given an id or uid of one; null for the newest $3 and all names in the
-- routes of handlers.
select d.event_id, d.item_path
from (
    select unnest(boathook.application_names($1)) as name where $1 is not null
    union
    (select boathook.show_id('app', id) from boathook.application where $1 is null order by id desc limit $3)
    union
    select distinct application from boathook.route where $1 is null and application is not null
) as a
join boathook.dedup d on d.key = encode(
    substr(sha256(convert_to('application', 'UTF8') || '\x00'::bytea || convert_to(a.name, 'UTF8') || '\x00'::bytea || $2::bytea), 1, 16),
    'hex')::uuid
