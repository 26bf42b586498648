-- fragment: selected_dead
-- Conditions on dead letters: source and type pattern of their own event or of the first of its chain, application,
-- recipient pattern, code, times of death, keys, and the organization that they belong to unless that is null.
d.state = 'dead'
    and ($1::text is null or e.source = $1 or {first_source} = $1)
    and ($2::text is null or e.application = any ((select boathook.application_names($2))::text[]))
    and ($3::text is null or e.type like $3 or d.item_type like $3 or {first_type} like $3)
    and ($4::text is null or d.recipient like $4)
    and ($5::text is null or d.code = $5)
    and ($6::timestamptz is null or d.dead_at >= $6)
    and ($7::timestamptz is null or d.dead_at < $7)
    and ($8::uuid[] is null or (d.event_id, d.ordinal) in (select * from unnest($8::uuid[], $9::integer[])))
    and ($10::text is null or {organization} = $10)

-- fragment: add_planned
-- Inserts the deliveries of "planned", which are ordered by event and ordinal.
(
    select array_agg(event_id order by event_id, ordinal) as events,
        array_agg(ordinal order by event_id, ordinal) as ordinals,
        array_agg(recipient order by event_id, ordinal) as recipients,
        array_agg(order_key order by event_id, ordinal) as order_keys,
        array_agg(due_at order by event_id, ordinal) as due,
        array_agg(item_path order by event_id, ordinal) as paths,
        array_agg(item_type order by event_id, ordinal) as types
    from planned
) as p, boathook.add_deliveries(
    p.events, p.ordinals, p.recipients, p.order_keys, p.due, p.paths, p.types, false) as d

-- name: count_dead
-- Counts the dead letters of a selection, grouped by source, application, type, recipient and code.
select e.source, e.application, coalesce(d.item_type, e.type) as type, d.recipient, d.code, count(*) as number,
    min(d.dead_at) as oldest, max(d.dead_at) as newest
from boathook.delivery d
join boathook.event e on e.id = d.event_id
where {selected_dead}
group by 1, 2, 3, 4, 5
order by number desc, 3, 4, 5

-- name: read_states
-- Reads the states of those of these deliveries that exist and, unless $3 is null, belong to this organization.
select k.event_id, k.ordinal, d.state, d.recipient, boathook.accepts_deliveries(d.recipient), e.expunged_at is not null
from unnest($1::uuid[], $2::integer[]) as k (event_id, ordinal)
join boathook.event e on e.id = k.event_id
cross join lateral (
    select state, recipient from boathook.delivery where event_id = k.event_id and ordinal = k.ordinal
    union all
    select state, recipient from boathook.delivery_archive where event_id = k.event_id and ordinal = k.ordinal
) as d
where $3::text is null or {organization} = $3

-- name: lock_dead
-- Locks the next dead letters of a selection, in key order; those that another operator holds are skipped.
-- $12 also skips those that cannot be replayed: their content was deleted, or their endpoint is deleted or disabled.
select d.event_id, d.ordinal::integer as ordinal
from boathook.delivery d
join boathook.event e on e.id = d.event_id
where {selected_dead}
    and (not $12::boolean or (e.expunged_at is null and boathook.accepts_deliveries(d.recipient)))
order by d.event_id, d.ordinal
limit $11
for update of d skip locked

-- name: lock_dead_of_events
-- Locks the dead letters of these events that can be replayed and whose type, or item type, matches, in key order.
select d.event_id, d.ordinal::integer as ordinal
from boathook.delivery d
join boathook.event e on e.id = d.event_id
where d.state = 'dead' and d.event_id = any ($1::uuid[]) and ($2::text is null or e.type like $2 or d.item_type like $2)
    and e.expunged_at is null and boathook.accepts_deliveries(d.recipient)
order by d.event_id, d.ordinal
for update of d

-- name: revive_dead
-- Makes locked dead letters pending with a new budget of attempts, one every $5 seconds from $3, after $4 earlier ones.
-- An ordered one is blocked until `ordering.unblock` finds it first of its order key. Code and error remain until the
-- next attempt, so that operators can see the cause.
with planned as materialized (
    select event_id, ordinal, greatest(now(), $3::timestamptz + make_interval(secs => $5::float8 * ($4::integer + place - 1))) as due_at
    from unnest($1::uuid[], $2::integer[]) with ordinality as k (event_id, ordinal, place)
)
update boathook.delivery d
set state = 'pending', attempts_before = d.attempts, replays = d.replays + 1, crashes = 0, free_retries = 0, dead_at = null,
    is_manual = false, is_blocked = d.order_key is not null,
    (enqueued_at, due_at) = (
        select due_at, due_at from planned where event_id = d.event_id and ordinal = d.ordinal limit 1)
where d.event_id = any ($1::uuid[]) and d.dead_at is not null
    and ((d.event_id, d.ordinal) in (select event_id, ordinal from planned)) is true
returning d.recipient, d.order_key

-- name: settle_dead
-- Settles locked dead letters as ignored, with the operator's note.
with gone as (
    delete from boathook.delivery d
    where d.event_id = any ($1::uuid[]) and d.dead_at is not null
        and ((d.event_id, d.ordinal) in (select * from unnest($1::uuid[], $2::integer[]))) is true
    returning d.*
)
insert into boathook.delivery_archive (
    event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays, note, ended_at, item_path, item_type,
    is_manual)
select
    event_id, ordinal, recipient, 'ignored', order_key, is_replay, attempts, replays, $3, clock_timestamp(), item_path, item_type,
    is_manual
from gone

-- name: delete_dead
-- Deletes locked dead letters with their attempts, and counts them as dropped.
with gone as (
    delete from boathook.delivery d
    where d.event_id = any ($1::uuid[]) and d.dead_at is not null
        and ((d.event_id, d.ordinal) in (select * from unnest($1::uuid[], $2::integer[]))) is true
    returning d.event_id, d.ordinal
),
attempts as (
    delete from boathook.attempt a using gone g where a.event_id = g.event_id and a.ordinal = g.ordinal
)
insert into boathook.purge_log (kind, reason, dropped)
select 'dead letter', 'purged', count(*) from gone

-- name: record_actions
-- Records one operator's action on each of these subjects.
insert into boathook.audit (actor, action, subject, note)
select $1, $2, subject, $4 from unnest($3::text[]) as u (subject)

-- name: list_done
-- Returns which of these subjects were already processed by a run, which is identified by its note.
select subject from boathook.audit where action = $1 and subject = any ($2::text[]) and note = $3

-- name: list_acted_on
-- Returns the subjects of an action within a time range; actor and note identify the action.
select subject from boathook.audit
where action = $1 and actor = $2 and note is not distinct from $3 and at between $4 and $5
order by at, id
limit $6

-- name: count_results
-- Counts the results of replayed deliveries since a time; without an ordinal, of all replayed deliveries of an event.
-- Those that are dead letters of the group $4 failed with the same cause.
with same as materialized (
    select event_id, ordinal from boathook.delivery
    where state = 'dead' and boathook.dead_group(recipient, code, error) = $4::uuid and dead_at >= $3
)
select
    count(*) filter (where state = 'succeeded') as succeeded,
    count(*) filter (where state = 'ignored') as ignored,
    count(*) filter (where state = 'dead') as dead,
    count(*) filter (where state in ('pending', 'leased') and failures > 0) as retrying,
    count(*) filter (where state in ('pending', 'leased') and failures = 0) as waiting,
    count(*) filter (where is_same) as same_cause
from (
    select d.state, d.attempts - d.attempts_before - (d.state = 'leased')::integer as failures,
        (d.event_id, d.ordinal) in (select event_id, ordinal from same) as is_same
    from unnest($1::uuid[], $2::integer[]) as u (event_id, ordinal)
    join boathook.delivery d on d.event_id = u.event_id and d.ordinal = coalesce(u.ordinal, d.ordinal)
    where (d.is_replay or d.replays > 0) and d.enqueued_at >= $3
    union all
    select o.state, 0, false
    from unnest($1::uuid[], $2::integer[]) as u (event_id, ordinal)
    join boathook.delivery_archive o on o.event_id = u.event_id and o.ordinal = coalesce(u.ordinal, o.ordinal)
    where (o.is_replay or o.replays > 0) and o.ended_at >= $3
) as replayed

-- name: lock_pending
-- Locks the open deliveries of an event, in key order, after waiting for attempts that are being settled.
select from boathook.delivery where event_id = $1 order by ordinal for update

-- name: wake_pending
-- Makes locked pending deliveries of an event due, and marks leased ones to be retried immediately if they fail.
update boathook.delivery
set due_at = case state when 'pending' then least(due_at, clock_timestamp()) else due_at end,
    woken_by = case state when 'leased' then $2::text end
where event_id = $1 and state in ('pending', 'leased')

-- name: retry_pending
-- Makes a pending delivery due, and returns its recipient, whether it waits for its order, and whether its recipient
-- accepts deliveries.
update boathook.delivery set due_at = least(due_at, clock_timestamp())
where event_id = $1 and ordinal = $2 and state = 'pending'
returning recipient, is_blocked, boathook.accepts_deliveries(recipient) as takes

-- name: lock_replays
-- Locks these events for replays until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('boathook.replay:' || id, 0))
from (select id::text from unnest($1::uuid[]) as u (id) order by 1) as sorted

-- name: add_replays
-- Adds a delivery of each of these events, or of each of its items, for every recipient whose deliveries have all
-- ended: one every $4 seconds from $2, after $3 earlier ones. Skips events whose content was deleted, and deleted or
-- disabled endpoints. $5 is null or a pattern for the type of the event or the item.
with known as (
    select event_id, ordinal::integer as ordinal, recipient, order_key, item_path, item_type, true as is_open
    from boathook.delivery where event_id = any ($1::uuid[])
    union all
    select event_id, ordinal, recipient, order_key, item_path, item_type, false
    from boathook.delivery_archive where event_id = any ($1::uuid[])
),
recipients as (
    select k.event_id, k.recipient, k.item_path, k.item_type, max(k.order_key) as order_key, min(k.ordinal) as first
    from known k join boathook.event e on e.id = k.event_id
    where ($5::text is null or e.type like $5 or k.item_type like $5)
        and e.expunged_at is null and boathook.accepts_deliveries(k.recipient)
    group by k.event_id, k.recipient, k.item_path, k.item_type having not bool_or(k.is_open)
),
next as (
    select e.id as event_id, greatest(e.fanout, coalesce(max(k.ordinal) + 1, 0)) as ordinal
    from boathook.event e left join known k on k.event_id = e.id
    where e.id = any ($1::uuid[])
    group by e.id, e.fanout
),
planned as (
    select r.event_id, n.ordinal + row_number() over (partition by r.event_id order by r.first) - 1 as ordinal,
        r.recipient, r.order_key, r.item_path, r.item_type,
        greatest(now(), $2::timestamptz + make_interval(
            secs => $4::float8 * ($3::integer + row_number() over (order by r.event_id, r.first) - 1))) as due_at
    from recipients r join next n on n.event_id = r.event_id
)
select d.recipient, d.order_key
from {add_planned}

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

-- name: mark_rejection
-- Records which event a rejected request became, unless it has already become one.
update boathook.rejection set event_id = $2 where id = $1 and event_id is null

-- name: lock_conflict
-- Reads a conflict with an event of organization $2, or of any if that is null, and locks it, so that of two operators
-- only one accepts it.
select e.id, e.event_id, e.source, e.application, e.type, e.grade, e.headers::text as headers, e.content_type, e.body,
    e.body_sha256, e.channels, e.tags, e.content_until, e.accepted_as
from boathook.conflict e
where e.id = $1 and ($2::text is null or {organization} = $2)
for update

-- name: mark_conflict
-- Records which event a locked conflict became.
update boathook.conflict set accepted_as = $2 where id = $1

-- name: read_clock
-- Reads the server's clock.
select clock_timestamp()
