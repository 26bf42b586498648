-- Every `find_…` statement but those Python reconciles returns (id, ordinal, detail, total): up to five rows that
-- break its rule and how many there are in all. A store in balance returns no row anywhere.

-- name: hold_partitions
-- Keeps partitions from being dropped under the snapshot, which does not cover a drop.
lock table boathook.event, boathook.attempt, boathook.outcome, boathook.effect, boathook.reply in access share mode

-- name: plan_by_partition
-- Joins and sums week by week, so that memory does not grow with the history.
select set_config('enable_partitionwise_join', 'on', true), set_config('enable_partitionwise_aggregate', 'on', true)

-- name: sum_events
-- Counts events, what they were owed when accepted, and where they came from.
select now() as taken_at, count(*) as events, count(*) filter (where origin = 'received') as received,
    count(*) filter (where origin = 'published') as published, coalesce(sum(fanout), 0)::bigint as owed
from boathook.event

-- name: sum_deliveries
-- Counts deliveries by where they stand.
select
    coalesce(sum(number) filter (where state = 'succeeded'), 0)::bigint as succeeded,
    coalesce(sum(number) filter (where state = 'ignored'), 0)::bigint as ignored,
    coalesce(sum(number) filter (where state = 'dead'), 0)::bigint as dead,
    coalesce(sum(number) filter (where state = 'pending'), 0)::bigint as pending,
    coalesce(sum(number) filter (where state = 'leased'), 0)::bigint as leased,
    coalesce(sum(number) filter (where is_replay), 0)::bigint as replayed
from (
    select state, is_replay, count(*) as number from boathook.delivery group by 1, 2
    union all
    select state, is_replay, count(*) from boathook.outcome group by 1, 2
) as counted

-- name: sum_others
-- Counts attempts and what did not become an event.
select
    (select count(*) from boathook.attempt) as attempts,
    (select count(*) from boathook.dedup) as remembered,
    (select count(*) from boathook.conflict) as conflicts,
    (select coalesce(sum(seen), 0)::bigint from boathook.conflict) as conflicting_requests,
    (select count(*) from boathook.rejection) as rejections

-- name: sum_dropped
-- Counts what retention and operators have dropped, by kind and reason.
select kind, reason, sum(dropped)::bigint as dropped from boathook.retention group by 1, 2 order by 1, 2

-- name: stream_uneven_events
-- Streams the events that hold more or fewer first deliveries than they were accepted with; purged dead letters explain
-- fewer. `ordinals` are those that are there.
with held as (
    select event_id, count(*) as number, array_agg(ordinal::integer) as ordinals
    from (
        select event_id, ordinal from boathook.delivery where not is_replay
        union all
        select event_id, ordinal from boathook.outcome where not is_replay
    ) as first_ones
    group by event_id
)
select e.id, e.fanout::integer as fanout, coalesce(h.number, 0)::integer as held, coalesce(h.ordinals, '{}') as ordinals
from boathook.event e
left join held h on h.event_id = e.id
where e.fanout <> coalesce(h.number, 0)

-- name: stream_ignored_without_attempt
-- Streams the ignored deliveries whose last attempt was not ignored; an operator's decision explains them.
select o.event_id, o.ordinal::integer as ordinal, coalesce(a.outcome, 'no attempt') as last_outcome
from boathook.outcome o
left join boathook.attempt a on a.event_id = o.event_id and a.ordinal = o.ordinal and a.number = o.attempts
where o.state = 'ignored' and a.outcome is distinct from 'ignored'

-- name: list_audited
-- Says which of these subjects an action of one of these kinds is recorded for.
select distinct subject from boathook.audit where action = any ($1::text[]) and subject = any ($2::text[])

-- name: find_orphans
-- Finds what belongs to an event that does not exist.
select event_id as id, ordinal, detail, count(*) over () as total
from (
    select d.event_id, d.ordinal::integer as ordinal, 'delivery' as detail
    from boathook.delivery d where not exists (select from boathook.event e where e.id = d.event_id)
    union all
    select o.event_id, o.ordinal, 'outcome'
    from boathook.outcome o where not exists (select from boathook.event e where e.id = o.event_id)
    union all
    select a.event_id, a.ordinal, 'attempt ' || a.number
    from boathook.attempt a where not exists (select from boathook.event e where e.id = a.event_id)
    union all
    select f.event_id, 0, 'effect ' || f.name
    from boathook.effect f where not exists (select from boathook.event e where e.id = f.event_id)
    union all
    select r.event_id, 0, 'reply of ' || r.recipient
    from boathook.reply r where not exists (select from boathook.event e where e.id = r.event_id)
) as bad
limit 5

-- name: find_open_and_settled
-- Finds deliveries that are still owed and ended already.
select d.event_id as id, d.ordinal::integer as ordinal, d.state || ' and ' || o.state as detail, count(*) over () as total
from boathook.delivery d
join boathook.outcome o on o.event_id = d.event_id and o.ordinal = d.ordinal
limit 5

-- name: find_owed_twice
-- Finds events, or items of them, that were accepted with two deliveries for one recipient.
select event_id as id, null::integer as ordinal, recipient || coalesce(', item ' || item_path, '') as detail,
    count(*) over () as total
from (
    select event_id, recipient, item_path from boathook.delivery where not is_replay
    union all
    select event_id, recipient, item_path from boathook.outcome where not is_replay
) as first_ones
group by event_id, recipient, item_path
having count(*) > 1
limit 5

-- name: find_wrong_items
-- Finds deliveries that are about an item of an event which was stored whole, or about the whole of one stored item by
-- item, and replays that are about something else than the first delivery to their recipient was. A message may be owed
-- to an endpoint without a first delivery: one that was made, or asked for it, only later.
with owed as not materialized (
    select event_id, ordinal::integer as ordinal, recipient, is_replay, item_path, item_type from boathook.delivery
    union all
    select event_id, ordinal, recipient, is_replay, item_path, item_type from boathook.outcome
),
bad as (
    select * from owed o
    where o.item_path is null
        and exists (select from boathook.dedup k where k.event_id = o.event_id and k.item_path is not null)
    union all
    select * from owed o
    where o.item_path is not null
        and exists (select from boathook.dedup k where k.event_id = o.event_id and k.item_path is null)
    union all
    select * from owed o
    where o.is_replay and not (starts_with(o.recipient, 'endpoint:') and o.item_path is null) and not exists (
        select from owed f
        where f.event_id = o.event_id and f.recipient = o.recipient and not f.is_replay
            and f.item_path is not distinct from o.item_path and f.item_type is not distinct from o.item_type)
)
select event_id as id, ordinal, recipient || ', ' || coalesce('item ' || item_path, 'no item') as detail,
    count(*) over () as total
from bad
limit 5

-- name: find_misnumbered
-- Finds first deliveries numbered like replays, and replays numbered like first ones.
select d.event_id as id, d.ordinal::integer as ordinal, 'fanout ' || e.fanout as detail, count(*) over () as total
from (
    select event_id, ordinal, is_replay from boathook.delivery
    union all
    select event_id, ordinal, is_replay from boathook.outcome
) as d
join boathook.event e on e.id = d.event_id
where d.is_replay <> (d.ordinal >= e.fanout)
limit 5

-- name: find_miscounted_open
-- Finds open deliveries whose recorded attempts are not those counted; a leased one's latest is not recorded yet.
select d.event_id as id, d.ordinal::integer as ordinal,
    d.state || ', counted ' || d.attempts || ', recorded ' || coalesce(a.number, 0) as detail, count(*) over () as total
from boathook.delivery d
left join lateral (
    select count(*) as number, max(number) as last
    from boathook.attempt a where a.event_id = d.event_id and a.ordinal = d.ordinal
) as a on true
where d.attempts - (d.state = 'leased')::integer <> a.number or a.number <> coalesce(a.last, 0)
limit 5

-- name: find_miscounted_settled
-- Finds settled deliveries whose recorded attempts are not those counted.
with recorded as (
    select event_id, ordinal, count(*) as number, max(number) as last from boathook.attempt group by event_id, ordinal
)
select o.event_id as id, o.ordinal::integer as ordinal,
    'counted ' || o.attempts || ', recorded ' || coalesce(r.number, 0) as detail, count(*) over () as total
from boathook.outcome o
left join recorded r on r.event_id = o.event_id and r.ordinal = o.ordinal
where o.attempts <> coalesce(r.number, 0) or coalesce(r.number, 0) <> coalesce(r.last, 0)
limit 5

-- name: find_stray_attempts
-- Finds attempts of deliveries that do not exist.
select a.event_id as id, a.ordinal::integer as ordinal, 'attempt ' || a.number as detail, count(*) over () as total
from boathook.attempt a
where not exists (select from boathook.outcome o where o.event_id = a.event_id and o.ordinal = a.ordinal)
    and not exists (select from boathook.delivery d where d.event_id = a.event_id and d.ordinal = a.ordinal)
limit 5

-- name: find_false_successes
-- Finds succeeded deliveries whose last attempt did not succeed.
select o.event_id as id, o.ordinal::integer as ordinal, coalesce(a.outcome, 'no attempt') as detail, count(*) over () as total
from boathook.outcome o
left join boathook.attempt a on a.event_id = o.event_id and a.ordinal = o.ordinal and a.number = o.attempts
where o.state = 'succeeded' and a.outcome is distinct from 'succeeded'
limit 5

-- name: find_ended_twice
-- Finds attempts that ended a delivery which then went on.
select a.event_id as id, a.ordinal::integer as ordinal, 'attempt ' || a.number || ' ' || a.outcome as detail,
    count(*) over () as total
from boathook.attempt a
where a.outcome in ('succeeded', 'ignored')
    and not exists (
        select from boathook.outcome o
        where o.event_id = a.event_id and o.ordinal = a.ordinal and o.attempts = a.number)
limit 5

-- name: find_illegal_deliveries
-- Finds open deliveries that the table's own rules forbid.
select event_id as id, ordinal::integer as ordinal, 'state ' || state as detail, count(*) over () as total
from boathook.delivery
where state not in ('pending', 'leased', 'dead')
    or (state = 'leased') <> (leased_by is not null and lease_until is not null)
    or (state = 'leased' and not (attempts > attempts_before and fence > 0))
    or (state = 'dead') <> (died_at is not null)
    or (state = 'dead' and code is null)
    or (is_blocked and (state <> 'pending' or order_key is null))
    or attempts_before not between 0 and attempts
    or (item_path is null) <> (item_type is null)
limit 5

-- name: find_illegal_ends
-- Finds settled deliveries and attempts that the tables' own rules forbid.
select id, ordinal, detail, count(*) over () as total
from (
    select event_id as id, ordinal::integer as ordinal, 'outcome ' || state as detail
    from boathook.outcome
    where state not in ('succeeded', 'ignored') or (state = 'ignored' and note is null) or (state = 'succeeded' and attempts < 1)
        or (item_path is null) <> (item_type is null)
    union all
    select event_id, ordinal, 'attempt ' || number || ' ' || outcome
    from boathook.attempt
    where outcome not in ('succeeded', 'ignored', 'retry', 'failed', 'dead', 'lost') or number < 1
) as bad
limit 5

-- name: find_double_leases
-- Finds order keys of which more than one delivery is under lease.
select (array_agg(event_id order by seq))[1] as id, (array_agg(ordinal::integer order by seq))[1] as ordinal,
    recipient || ', order key ' || order_key as detail, count(*) over () as total
from boathook.delivery
where state = 'leased' and order_key is not null
group by recipient, order_key
having count(*) > 1
limit 5

-- name: find_stuck_lines
-- Finds order keys whose first delivery waits for one that is not there. That happens for a moment when the one before
-- it ends while it joins; the keeper sees to it, so only those older than a minute count.
select event_id as id, ordinal, recipient || ', order key ' || order_key as detail, count(*) over () as total
from (
    select distinct on (recipient, order_key) event_id, ordinal::integer as ordinal, recipient, order_key, is_blocked, owed_since
    from boathook.delivery
    where order_key is not null and state <> 'dead'
    order by recipient, order_key, seq
) as head
where is_blocked and owed_since < now() - interval '1 minute'
    and not exists (
        select from boathook.delivery o
        where o.recipient = head.recipient and o.order_key = head.order_key and o.state = 'leased')
limit 5

-- name: find_forgotten_events
-- Finds events, and items that were owed, whose dedup key is gone before its time. Days of memory: $1 by source ($2),
-- else $3, but 30 for messages with an id of their own; those without are remembered for a day, for their idempotency
-- keys. Where an event is without a key, none older may have one, unless keys were
-- never dropped: raising the days revives no dropped key.
with oldest as (
    select min(e.accepted_at) as accepted_at
    from boathook.dedup k join boathook.event e on e.id = k.event_id
)
select e.id, f.ordinal, coalesce(e.source, 'published') || coalesce(', item ' || f.item_path, '') as detail,
    count(*) over () as total
from (
    select id, null::integer as ordinal, null as item_path
    from boathook.event e where not exists (select from boathook.dedup k where k.event_id = e.id)
    union all
    select d.event_id, d.ordinal, d.item_path
    from (
        select event_id, ordinal, item_path from boathook.delivery where item_path is not null and not is_replay
        union all
        select event_id, ordinal, item_path from boathook.outcome where item_path is not null and not is_replay
    ) as d
    where not exists (select from boathook.dedup k where k.event_id = d.event_id and k.item_path = d.item_path)
) as f
join boathook.event e on e.id = f.id
left join unnest($1::text[], $2::float8[]) as s (source, days) on s.source = e.source
where e.accepted_at > now() - make_interval(
        secs => 86400 * least($3::float8, s.days, case when e.source is null then 30 end))
    and not (e.origin = 'published' and e.accepted_at < now() - interval '1 day'
        and e.dedup_key = boathook.show_id('evt', e.id))
    and (e.accepted_at > (select accepted_at from oldest)
        or not exists (select from boathook.retention where kind = 'dedup' and dropped > 0))
limit 5

-- name: find_keys_without_event
-- Finds dedup keys of events that are not there and were never dropped.
select k.event_id as id, null::integer as ordinal, 'key ' || k.key as detail, count(*) over () as total
from boathook.dedup k
where not exists (select from boathook.event e where e.id = k.event_id)
    and not exists (
        select from boathook.retention r
        where r.kind = 'event' and r.dropped > 0 and r.at > boathook.made_at(k.event_id))
limit 5

-- name: find_shared_keys
-- Finds events, or items of them, that more than one dedup key names.
select event_id as id, null::integer as ordinal, count(*) || ' keys' || coalesce(' of item ' || item_path, '') as detail,
    count(*) over () as total
from boathook.dedup
group by event_id, item_path
having count(*) > 1
limit 5

-- name: find_wrong_key_bodies
-- Finds dedup keys that remember another body than their event has; those of items know a part of it only.
select e.id, null::integer as ordinal, 'key ' || k.key as detail, count(*) over () as total
from boathook.dedup k
join boathook.event e on e.id = k.event_id
where k.body_sha256 <> e.body_sha256 and k.item_path is null
limit 5

-- name: find_wrong_conflicts
-- Finds conflicts of events that were never there, and those that differ from their event in nothing.
select c.id, null::integer as ordinal, case when e.id is null then 'its event is missing' else 'it does not differ' end as detail,
    count(*) over () as total
from boathook.conflict c
left join boathook.event e on e.id = c.event_id
where (e.id is null and not exists (
        select from boathook.retention r
        where r.kind = 'event' and r.dropped > 0 and r.at > boathook.made_at(c.event_id)))
    or (e.id is not null and c.differs = 'body' and c.body_sha256 = e.body_sha256)
    or (e.id is not null and c.differs = 'key' and c.dedup_key = e.dedup_key)
limit 5

-- name: find_wrong_rejections
-- Finds rejections that were accepted after all as an event that was never there, or one of another source.
select r.id, null::integer as ordinal,
    case when e.id is null then 'its event is missing' else 'its event is of source ' || coalesce(e.source, '(none)') end as detail,
    count(*) over () as total
from boathook.rejection r
left join boathook.event e on e.id = r.event_id
where r.event_id is not null
    and (e.source is distinct from r.source)
    and not (e.id is null and exists (
        select from boathook.retention t
        where t.kind = 'event' and t.dropped > 0 and t.at > boathook.made_at(r.event_id)))
limit 5

-- name: find_strangers
-- Finds what is or was owed to an endpoint of another application than the event's, or is owed to one that never was.
with owners as materialized (
    select 'endpoint:' || boathook.show_id('ep', id) as recipient, boathook.show_id('app', application_id) as application
    from boathook.endpoint
)
select d.event_id as id, d.ordinal::integer as ordinal,
    d.recipient || ' of ' || coalesce(o.application, 'nobody') || ', event of ' || coalesce(e.application, e.source) as detail,
    count(*) over () as total
from (
    select event_id, ordinal, recipient, true as is_open from boathook.delivery where starts_with(recipient, 'endpoint:')
    union all
    select event_id, ordinal, recipient, false from boathook.outcome where starts_with(recipient, 'endpoint:')
) as d
join boathook.event e on e.id = d.event_id
left join owners o on o.recipient = d.recipient
where o.application <> e.application or (o.application is null and d.is_open) or e.application is null
limit 5

-- name: find_unknown_applications
-- Finds events of applications that never were.
select e.id, null::integer as ordinal, e.application as detail, count(*) over () as total
from boathook.event e
where e.application ~ '^app_[0-9a-z]{27}$'
    and not exists (select from boathook.application a where boathook.show_id('app', a.id) = e.application)
limit 5

-- name: find_half_expunged
-- Finds events that are marked as without content and have some.
select id, null::integer as ordinal, octet_length(body) || ' bytes' as detail, count(*) over () as total
from boathook.event
where expunged_at is not null and body <> ''
limit 5

-- name: find_uncounted_purges
-- Compares the purges recorded one by one with those counted as dropped.
select null::uuid as id, null::integer as ordinal, recorded || ' recorded, ' || counted || ' counted' as detail, 1::bigint as total
from (
    select (select count(*) from boathook.audit where action = 'dead.purge') as recorded,
        (select coalesce(sum(dropped), 0) from boathook.retention where kind = 'dead letter' and reason = 'purged') as counted
) as purges
where recorded <> counted

-- name: find_missing_guards
-- Finds constraints, indexes and triggers of the schema that are missing, invalid or switched off.
select null::uuid as id, null::integer as ordinal, needed.name as detail, count(*) over () as total
from unnest($1::text[]) as needed (name)
where not exists (
        select from pg_constraint c
        where c.connamespace = 'boathook'::regnamespace and c.conname = needed.name and c.convalidated)
    and not exists (
        select from pg_index i join pg_class c on c.oid = i.indexrelid
        where c.relnamespace = 'boathook'::regnamespace and c.relname = needed.name and i.indisvalid and i.indisunique)
    and not exists (
        select from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'boathook'::regnamespace and t.tgname = needed.name and t.tgenabled <> 'D')
order by needed.name
limit 5

-- name: check_event_bodies
-- Compares the next events' bodies with their hashes; of those whose content was deleted only the hash is left.
select id, expunged_at is not null or sha256(body) = body_sha256 as is_right
from boathook.event where id > $1 order by id limit $2

-- name: check_conflict_bodies
-- Compares the next conflicts' bodies with their hashes.
select id, sha256(body) = body_sha256 as is_right from boathook.conflict where id > $1 order by id limit $2
