-- Lists, newest first. Each takes the same optional filters as its first arguments and, for the next page, the key of
-- the last row; rows are found by index, however old the page is.

-- fragment: organization
-- The owner of an event: inbound ones, and messages for names without an application, are the default organization's.
coalesce(
    (select a.organization from boathook.application a where a.id = boathook.read_id('app', e.application)), 'default')

-- fragment: event_columns
-- The columns of EventRow.
e.id, e.source, e.application, e.type, e.dedup_key, e.grade, e.origin, e.accepted_at, e.content_type,
    octet_length(e.body) as size, e.fanout::integer as fanout, e.channels, e.tags, e.expunged_at, e.same_body_as

-- fragment: delivery_columns
-- The columns of DeliveryRow.
d.event_id, d.ordinal::integer as ordinal, d.recipient, d.state, d.attempts, d.due_at, d.code, d.note, d.ended_at,
    d.order_key, d.replays::integer as replays, d.is_replay, d.is_manual, d.item_path,
    e.source, e.application, e.grade, coalesce(d.item_type, e.type) as type, {paused_until}

-- fragment: paused_until
-- When the next probe of a pending delivery's endpoint goes, if it is paused.
case when d.state = 'pending' then (
    select h.open_until from boathook.endpoint_health h where h.endpoint_id = boathook.endpoint_of(d.recipient)
) end as paused_until

-- fragment: open_delivery
-- The columns of an open delivery, for a union with those of an ended one.
event_id, ordinal, recipient, state, attempts, case when state = 'pending' then due_at end as due_at, code,
    error as note, dead_at as ended_at, order_key, replays, is_replay, is_manual, item_path, item_type

-- fragment: ended_delivery
-- The columns of an ended delivery.
event_id, ordinal, recipient, state, attempts, null, null, note, ended_at, order_key, replays, is_replay, is_manual,
    item_path, item_type

-- fragment: first_source
-- The source of the first event of the chain that led to delivery d; null if no handler published its event.
(select f.source from boathook.event_cause c join boathook.event f on f.id = c.first_id where c.event_id = d.event_id)

-- fragment: first_type
-- The type of that event.
(select f.type from boathook.event_cause c join boathook.event f on f.id = c.first_id where c.event_id = d.event_id)

-- fragment: selected_event
-- Conditions on an event: source, application, type pattern, first id, id before.
($1::text is null or e.source = $1)
    and ($2::text is null or e.application = any ((select boathook.application_names($2))::text[]))
    and ($3::text is null or e.type like $3
        or exists (select from boathook.delivery d where d.event_id = e.id and d.item_type like $3)
        or exists (select from boathook.delivery_archive o where o.event_id = e.id and o.item_type like $3)
        or exists (select from json_array_elements(e.items) as i (item) where i.item ->> 1 like $3))
    and ($4::uuid is null or e.id >= $4)
    and ($5::uuid is null or e.id < $5)

-- name: get_event
-- Reads one event with its bytes.
select {event_columns}, e.headers, e.body
from boathook.event e where e.id = $1

-- name: find_keys
-- Finds the dedup keys of events.
select id, dedup_key from boathook.event where id = any ($1::uuid[])

-- name: list_deliveries
-- Lists deliveries, open and ended, by the age of their event.
select {delivery_columns}
from (
    select {open_delivery}
    from boathook.delivery
    union all
    select {ended_delivery}
    from boathook.delivery_archive
) as d
join boathook.event e on e.id = d.event_id
where ($1::text is null or e.source = $1)
    and ($2::text is null or e.application = any ((select boathook.application_names($2))::text[]))
    and ($3::text is null or e.type like $3 or d.item_type like $3)
    and ($4::uuid is null or d.event_id >= $4)
    and ($5::uuid is null or d.event_id < $5)
    and ($6::text is null or d.state = $6)
    and ($7::text is null or d.recipient like $7)
    and ($8::text is null or d.code = $8)
    and ($9::uuid is null or (d.event_id, d.ordinal) < ($9, $10::integer))
order by d.event_id desc, d.ordinal desc
limit $11

-- name: scan_deliveries
-- Scans the $12 deliveries from a key on ($1, $2) and before another one ($3, $4), open and ended, by the age of their
-- event. Returns up to $11 that match source, application, type pattern, state, recipient pattern and code, and belong
-- to organization $13. The last scanned one is included, whether it `fits` or not. The owner is looked up once for each
-- application: it takes longer than all else.
with looked as materialized (
    select *, row_number() over (order by event_id {direction}, ordinal {direction}) as number
    from (
        (select event_id, ordinal, recipient, state, attempts, case when state = 'pending' then due_at end as due_at, code,
            error as note, dead_at as ended_at, order_key, replays, is_replay, is_manual, item_path, item_type
        from boathook.delivery
        where (event_id, ordinal) >= ($1::uuid, $2::integer) and (event_id, ordinal) < ($3::uuid, $4::integer)
        order by event_id {direction}, ordinal {direction}
        limit $12)
        union all
        (select event_id, ordinal, recipient, state, attempts, null, null, note, ended_at, order_key, replays, is_replay,
            is_manual, item_path, item_type
        from boathook.delivery_archive
        where event_id >= $1 and event_id <= $3
            and (event_id, ordinal) >= ($1, $2) and (event_id, ordinal) < ($3, $4)
        order by event_id {direction}, ordinal {direction}
        limit $12)
    ) as d
    order by event_id {direction}, ordinal {direction}
    limit $12
),
matching as materialized (
    select d.*, e.source, e.application, e.grade, coalesce(d.item_type, e.type) as type
    from looked d
    join boathook.event e on e.id = d.event_id
    where ($5::text is null or e.source = $5)
        and ($6::text is null or e.application = any ((select boathook.application_names($6))::text[]))
        and ($7::text is null or e.type like $7 or d.item_type like $7)
        and ($8::text is null or d.state = $8)
        and ($9::text is null or d.recipient like $9)
        and ($10::text is null or d.code = $10)
),
own as materialized (
    select coalesce(e.application, '') as application
    from (select distinct application from matching) as e
    where {organization} = $13
),
fitting as (
    select * from matching
    where coalesce(application, '') in (select application from own)
    order by number
    limit $11
),
last as (
    select * from looked where number = $12::bigint and number not in (select number from fitting)
)
select true as fits, number, event_id, ordinal::integer as ordinal, recipient, state, attempts, due_at, code, note, ended_at,
    order_key, replays::integer as replays, is_replay, is_manual, item_path, source, application, grade, type,
    {paused_until}
from fitting d
union all
select false, number, event_id, ordinal::integer, recipient, state, attempts, due_at, code, note, ended_at, order_key,
    replays::integer, is_replay, is_manual, item_path, null, null, '', '', null
from last
order by number

-- name: list_deliveries_of_event
-- Lists the deliveries of one event, in order.
select {delivery_columns}
from (
    select {open_delivery}
    from boathook.delivery where event_id = $1
    union all
    select {ended_delivery}
    from boathook.delivery_archive where event_id = $1
) as d
join boathook.event e on e.id = d.event_id
where $2::integer is null or d.ordinal = $2
order by d.ordinal

-- name: find_first
-- Finds the first events of the chains that lead to these events, as far as they are stored.
select c.event_id, c.first_id, f.source, f.application, f.type
from boathook.event_cause c
left join lateral (select source, application, type from boathook.event where id = c.first_id limit 1) as f on true
where c.event_id = any ($1::uuid[])

-- name: list_dead
-- Lists dead letters by the age of their event; the times are those of death.
select d.event_id, d.ordinal::integer as ordinal, d.recipient, d.state, d.attempts, null::timestamptz as due_at, d.code,
    d.error as note, d.dead_at as ended_at, d.order_key, d.replays::integer as replays, d.is_replay,
    d.is_manual, d.item_path, e.source, e.application, e.grade, coalesce(d.item_type, e.type) as type
from boathook.delivery d
join boathook.event e on e.id = d.event_id
where d.state = 'dead'
    and ($1::text is null or e.source = $1 or {first_source} = $1)
    and ($2::text is null or e.application = any ((select boathook.application_names($2))::text[]))
    and ($3::text is null or e.type like $3 or d.item_type like $3 or {first_type} like $3)
    and ($4::timestamptz is null or d.dead_at >= $4)
    and ($5::timestamptz is null or d.dead_at < $5)
    and ($6::text is null or d.recipient like $6)
    and ($7::text is null or d.code = $7)
    and ($8::uuid is null or (d.event_id, d.ordinal) < ($8, $9::integer))
order by d.event_id desc, d.ordinal desc
limit $10

-- name: list_attempts
-- Lists the attempts of one delivery, in order.
select number, outcome, code, error, traceback, started_at, ended_at, worker, dependency
from boathook.attempt where event_id = $1 and ordinal = $2
order by number

-- name: list_effects
-- Lists the completed side effects of a recipient for an event, or for an item of it, which will not run again.
select coalesce(substr(name, length($3) + 2), name) as name, result::text as result, done_at
from boathook.side_effect
where event_id = $1 and recipient = $2 and ($3::text is null or starts_with(name, $3 || '/'))
order by done_at, name

-- fragment: selected_rejection
-- Selects the rejected requests of source $1 with reason $2, with ids from $3 to $4, `open` or `accepted` since ($5), which
-- organization $6 may reach; null selects all.
($1::text is null or r.source = $1)
    and ($2::text is null or r.reason = $2)
    and ($3::uuid is null or r.id >= $3)
    and ($4::uuid is null or r.id < $4)
    and ($5::text is null or ($5 = 'accepted') = (r.event_id is not null))
    and ($6::text is null or $6 = 'default')

-- name: list_rejections
-- Lists rejected requests; `state` open means not accepted since.
select r.id, nullif(r.source, '') as source, r.status::integer as status, r.reason, r.detail, r.client_address, r.method, r.url, r.content_type, r.body_size,
    r.event_id
from boathook.rejection r
where {selected_rejection}
    and ($7::uuid is null or r.id {beyond} $7)
order by r.id {direction}
limit $8

-- name: count_rejections
-- Counts rejected requests by source and reason, the largest number first.
select nullif(r.source, '') as source, null::text as application, r.reason as cause, count(*) as number
from boathook.rejection r
where {selected_rejection}
group by r.source, r.reason
order by count(*) desc, r.source, r.reason

-- name: get_rejection
-- Reads one rejected request with its headers and bytes.
select r.id, nullif(r.source, '') as source, r.status::integer as status, r.reason, r.detail, r.client_address, r.method, r.url, r.content_type, r.body_size,
    r.event_id, r.headers, r.body
from boathook.rejection r where r.id = $1 and ($2::text is null or $2 = 'default')

-- fragment: selected_conflict
-- Selects the conflicts of source $1 or application $2, with ids from $3 to $4, which differ in $5, `open` or `accepted`
-- since ($6); null selects all. $7 is the organization whose events they are of.
($1::text is null or e.source = $1)
    and ($2::text is null or e.application = any ((select boathook.application_names($2))::text[]))
    and ($3::uuid is null or e.id >= $3)
    and ($4::uuid is null or e.id < $4)
    and ($5::text is null or e.differs = $5)
    and ($6::text is null or ($6 = 'accepted') = (e.accepted_as is not null))

-- name: list_conflicts
-- Lists requests whose key or body, but not both, was seen before; each belongs to the owner of its event.
select e.id, e.event_id, e.source, e.application, e.dedup_key, e.type, e.differs, e.seen, e.last_seen_at, e.accepted_as,
    octet_length(e.body) as size
from boathook.conflict e
where {selected_conflict}
    and ($7::text is null or {organization} = $7)
    and ($8::uuid is null or e.id {beyond} $8)
order by e.id {direction}
limit $9

-- name: count_conflicts
-- Counts conflicts by source or application and by what differs, the largest number first.
select e.source, e.application, e.differs as cause, count(*) as number
from boathook.conflict e
where {selected_conflict}
    and ($7::text is null or {organization} = $7)
group by e.source, e.application, e.differs
order by count(*) desc, e.source, e.application, e.differs

-- name: find_owner
-- Returns the organization that events of an application, or inbound ones if it is null, belong to.
select {organization} from (values ($1::text)) as e (application)

-- name: list_audit
-- Lists operator actions.
select a.id, a.at, a.actor, a.action, a.subject, a.note
from boathook.audit a
where ($1::text is null or a.subject = $1)
    and ($2::text is null or a.action = $2)
    and ($3::timestamptz is null or a.at >= $3)
    and ($4::timestamptz is null or a.at < $4)
    and ($5::bigint is null or a.id < $5)
order by a.id desc
limit $6
