-- The consistency check runs query by query. A query is one statement, so it sees one point in time; all rows of an
-- event have the event's id, so a query of a range of ids sees those events completely. integrity.py assembles it:
-- `gather_…` are its parts, and each `find_…` reads them and returns (id, ordinal, expected, found) of violations: no
-- row in a sound store. $1 and $2 are the range: from $1, up to but not including $2.

-- name: prepare_look
-- Sets the limits of a query: one core and little memory, and hash joins whatever the statistics say about new ids.
set local work_mem = '16MB';
set local max_parallel_workers_per_gather = 0;
set local enable_nestloop = off;
set local plan_cache_mode = force_custom_plan

-- name: find_event_bound
-- Finds where a range of events from $1 must end so that no table holds more than $2 rows of it.
select id from (
    (select id from boathook.event where id > $1 order by id offset $2::bigint limit 1)
    union all
    (select event_id from boathook.delivery where event_id > $1 order by event_id offset $2::bigint limit 1)
    union all
    (select event_id from boathook.delivery_archive where event_id > $1 order by event_id offset $2::bigint limit 1)
    union all
    (select event_id from boathook.attempt where event_id > $1 order by event_id offset $2::bigint limit 1)
    union all
    (select event_id from boathook.side_effect where event_id > $1 order by event_id offset $2::bigint limit 1)
    union all
    (select event_id from boathook.reply where event_id > $1 order by event_id offset $2::bigint limit 1)
) as ends
order by id
limit 1

-- name: find_memory_bound
-- Finds where a range of $2 events from $1 ends.
select id from boathook.event where id > $1 order by id offset $2::bigint limit 1

-- name: find_conflict_bound
-- Finds where a range of $2 conflicts from $1 ends.
select id from boathook.conflict where id > $1 order by id offset $2::bigint limit 1

-- name: find_rejection_bound
-- Finds where a range of $2 rejections from $1 ends.
select id from boathook.rejection where id > $1 order by id offset $2::bigint limit 1

-- name: find_extent
-- Reads the first and the last event, and the server's time.
select (select id from boathook.event order by id limit 1) as first, (select id from boathook.event order by id desc limit 1) as last,
    now() as now

-- name: gather_range
-- Reads all rows of a range of events. $3, $4 and $5 are the audit actions that explain purged deliveries, ignored
-- deliveries, and deliveries to handlers that did not match when the event was accepted.
with events as materialized (
    select id, source, application, origin, fanout::integer as fanout, expunged_at, octet_length(body) as size
    from boathook.event where id >= $1 and id < $2
),
open as materialized (
    select event_id, ordinal::integer as ordinal, recipient, state, order_key, is_blocked, is_replay, attempts, attempts_before,
        fence, leased_by, lease_until, dead_at, code, item_path, item_type
    from boathook.delivery where event_id >= $1 and event_id < $2
),
ended as materialized (
    select event_id, ordinal::integer as ordinal, recipient, state, is_replay, attempts, note is not null as has_note,
        item_path, item_type
    from boathook.delivery_archive where event_id >= $1 and event_id < $2
),
attempts as materialized (
    select event_id, ordinal::integer as ordinal, number, outcome from boathook.attempt where event_id >= $1 and event_id < $2
),
effects as materialized (
    select event_id, name from boathook.side_effect where event_id >= $1 and event_id < $2
),
replies as materialized (
    select event_id, recipient from boathook.reply where event_id >= $1 and event_id < $2
),
all_deliveries as materialized (
    select event_id, ordinal, recipient, state, is_replay, item_path, item_type, true as is_open from open
    union all
    select event_id, ordinal, recipient, state, is_replay, item_path, item_type, false from ended
),
tries as materialized (
    select event_id, ordinal, count(*) as number, max(number) as last from attempts group by event_id, ordinal
),
uneven as materialized (
    select e.id, e.fanout, coalesce(h.number, 0) as number, coalesce(h.ordinals, '{}') as ordinals
    from events e
    left join (
        select event_id, count(*) as number, array_agg(ordinal) as ordinals from all_deliveries where not is_replay group by event_id
    ) as h on h.event_id = e.id
    where e.fanout <> coalesce(h.number, 0)
),
purged as materialized (
    select u.id, count(*) as number
    from uneven u cross join lateral generate_series(0, u.fanout - 1) as place
    where place <> all (u.ordinals) and 0 < (
        select count(*) from boathook.audit
        where action = $3::text and subject = boathook.show_id('dlv', u.id) || '_' || place)
    group by u.id
),
undecided as materialized (
    select o.event_id, o.ordinal, coalesce(a.outcome, 'none') as last
    from (select event_id, ordinal, attempts from ended where state = 'ignored') as o
    left join attempts a on a.event_id = o.event_id and a.ordinal = o.ordinal and a.number = o.attempts
    where a.outcome is distinct from 'ignored'
),
unfounded as materialized (
    select o.event_id, o.ordinal, o.recipient, o.item_path
    from all_deliveries o
    left join (
        select distinct event_id, recipient, coalesce(item_path, '') as item_path, coalesce(item_type, '') as item_type
        from all_deliveries where not is_replay
    ) as f on f.event_id = o.event_id and f.recipient = o.recipient and f.item_path = coalesce(o.item_path, '')
        and f.item_type = coalesce(o.item_type, '')
    where o.is_replay and f.event_id is null
        and 0 = (select count(*) from boathook.audit where action = $5::text and subject = boathook.show_id('evt', o.event_id))
)

-- name: sum_range
-- Counts the rows of a range of events.
select f.name, f.number
from (
    select count(*) as events, count(*) filter (where origin = 'received') as received,
        count(*) filter (where origin = 'published') as published,
        count(*) filter (where origin = 'accepted_conflict') as accepted_conflicts, coalesce(sum(fanout), 0)::bigint as deliveries
    from events
) as e
cross join (
    select count(*) filter (where state = 'succeeded') as succeeded, count(*) filter (where state = 'ignored') as ignored,
        count(*) filter (where state = 'dead') as dead, count(*) filter (where state = 'pending') as pending,
        count(*) filter (where state = 'leased') as leased, count(*) filter (where is_replay) as replayed
    from all_deliveries
) as o
cross join (select count(*) as attempts from attempts) as a
cross join (select coalesce(sum(number), 0)::bigint as purged from purged) as p
cross join lateral (values
    ('events', e.events), ('received', e.received), ('published', e.published),
    ('accepted_conflicts', e.accepted_conflicts), ('deliveries', e.deliveries),
    ('succeeded', o.succeeded), ('ignored', o.ignored), ('dead', o.dead), ('pending', o.pending), ('leased', o.leased),
    ('replayed', o.replayed), ('attempts', a.attempts), ('purged', p.purged)
) as f (name, number)

-- name: find_uneven_events
-- Finds events with more or fewer first deliveries than they were accepted with; purged dead letters explain fewer.
select u.id, null::integer as ordinal, u.fanout || ' deliveries, as when it was accepted' as expected,
    u.number || ' are there' || coalesce(', ' || p.number || ' were purged', '') as found
from uneven u
left join purged p on p.id = u.id
where u.number + coalesce(p.number, 0) <> u.fanout

-- name: find_undecided
-- Finds ignored deliveries whose last attempt was not ignored, and for which no decision is recorded.
select event_id as id, ordinal, 'a last attempt that was ignored, or a decision in the audit' as expected,
    'last attempt: ' || last || ', no decision' as found
from undecided
where 0 = (
    select count(*) from boathook.audit
    where action = any ($4::text[]) and subject = boathook.show_id('dlv', event_id) || '_' || ordinal)

-- name: find_orphans
-- Finds rows of events that do not exist.
select p.event_id as id, p.ordinal, 'its event' as expected, 'no event; ' || p.what as found
from (
    select event_id, ordinal, case when is_open then 'delivery' else 'outcome' end as what from all_deliveries
    union all
    select event_id, ordinal, number || ' attempts' from tries
    union all
    select event_id, null, 'effect ' || name from effects
    union all
    select event_id, null, 'reply of ' || recipient from replies
) as p
left join events e on e.id = p.event_id
where e.id is null

-- name: find_open_and_settled
-- Finds deliveries that are both open and ended.
select d.event_id as id, d.ordinal, 'either open or ended' as expected, d.state || ' and ' || o.state as found
from open d
join ended o on o.event_id = d.event_id and o.ordinal = d.ordinal

-- name: find_delivered_twice
-- Finds events, or items of them, that were accepted with two deliveries for one recipient.
select event_id as id, null::integer as ordinal, 'one first delivery to ' || recipient as expected,
    count(*) || coalesce(' of item ' || item_path, '') as found
from all_deliveries
where not is_replay
group by event_id, recipient, item_path
having count(*) > 1

-- name: find_wrong_replays
-- Finds replays without a matching first delivery to their recipient. A message may be delivered to an endpoint without
-- a first delivery, if the endpoint was created or subscribed later. An event may be rerouted to a handler, which the
-- audit records.
select event_id as id, ordinal, 'a first delivery of the same to ' || recipient as expected,
    'none; the replay is of ' || coalesce('item ' || item_path, 'the whole event') as found
from unfounded
where not (starts_with(recipient, 'endpoint:') and item_path is null)

-- name: find_misnumbered
-- Finds first deliveries numbered like replays, and replays numbered like first ones.
select o.event_id as id, o.ordinal,
    case when o.is_replay then 'a replay has number ' || e.fanout || ' or more'
        else 'a first delivery has a number below ' || e.fanout end as expected,
    'number ' || o.ordinal as found
from all_deliveries o
join events e on e.id = o.event_id
where o.is_replay <> (o.ordinal >= e.fanout)

-- name: find_miscounted_open
-- Finds open deliveries whose recorded attempts do not match their counter; a leased delivery's latest is not recorded
-- yet.
select d.event_id as id, d.ordinal,
    'attempts 1 to ' || (d.attempts - (d.state = 'leased')::integer) || ', as counted (' || d.state || ')' as expected,
    coalesce(t.number, 0) || ' recorded' || coalesce(', the last is ' || t.last, '') as found
from open d
left join tries t on t.event_id = d.event_id and t.ordinal = d.ordinal
where d.attempts - (d.state = 'leased')::integer <> coalesce(t.number, 0) or coalesce(t.number, 0) <> coalesce(t.last, 0)

-- name: find_miscounted_settled
-- Finds ended deliveries whose recorded attempts do not match their counter.
select o.event_id as id, o.ordinal, 'attempts 1 to ' || o.attempts || ', as counted' as expected,
    coalesce(t.number, 0) || ' recorded' || coalesce(', the last is ' || t.last, '') as found
from ended o
left join tries t on t.event_id = o.event_id and t.ordinal = o.ordinal
where o.attempts <> coalesce(t.number, 0) or coalesce(t.number, 0) <> coalesce(t.last, 0)

-- name: find_orphaned_attempts
-- Finds attempts of deliveries that do not exist.
select t.event_id as id, t.ordinal, 'the delivery they were made for' as expected,
    'no delivery; attempts up to ' || t.last as found
from tries t
left join all_deliveries o on o.event_id = t.event_id and o.ordinal = t.ordinal
where o.event_id is null

-- name: find_false_successes
-- Finds succeeded deliveries whose last attempt did not succeed.
select o.event_id as id, o.ordinal, 'attempt ' || o.attempts || ' succeeded' as expected,
    coalesce('it was ' || a.outcome, 'no such attempt') as found
from ended o
left join attempts a on a.event_id = o.event_id and a.ordinal = o.ordinal and a.number = o.attempts
where o.state = 'succeeded' and a.outcome is distinct from 'succeeded'

-- name: find_ended_twice
-- Finds attempts that ended a delivery which was attempted again later.
select a.event_id as id, a.ordinal, 'attempt ' || a.number || ' (' || a.outcome || ') was the last' as expected,
    coalesce('it ended after attempt ' || o.attempts, 'it has not ended') as found
from attempts a
left join ended o on o.event_id = a.event_id and o.ordinal = a.ordinal
where a.outcome in ('succeeded', 'ignored') and o.attempts is distinct from a.number

-- name: find_illegal_deliveries
-- Finds open deliveries that the table's constraints forbid.
select event_id as id, ordinal, 'a state that can be' as expected,
    concat_ws(', ', state, attempts || ' attempts', 'leased by ' || leased_by, 'died ' || dead_at, 'code ' || code) as found
from open
where state not in ('pending', 'leased', 'dead')
    or (state = 'leased') <> (leased_by is not null and lease_until is not null)
    or (state = 'leased' and not (attempts > attempts_before and fence > 0))
    or (state = 'dead') <> (dead_at is not null)
    or (state = 'dead' and code is null)
    or (is_blocked and (state <> 'pending' or order_key is null))
    or attempts_before not between 0 and attempts
    or (item_path is null) <> (item_type is null)

-- name: find_illegal_ends
-- Finds ended deliveries and attempts that the tables' constraints forbid.
select event_id as id, ordinal, 'a state that can be' as expected,
    'outcome ' || state || ' after ' || attempts || ' attempts' || case when has_note then '' else ', without a note' end as found
from ended
where state not in ('succeeded', 'ignored') or (state = 'ignored' and not has_note) or (state = 'succeeded' and attempts < 1)
    or (item_path is null) <> (item_type is null)
union all
select event_id, ordinal, 'a state that can be', 'attempt ' || number || ' ' || outcome
from attempts
where outcome not in ('succeeded', 'ignored', 'retry', 'waiting', 'failed', 'dead', 'lost') or number < 1

-- name: find_strangers
-- Finds deliveries to an endpoint of another application than the event's, and open ones to an endpoint that never
-- existed.
select d.event_id as id, d.ordinal, 'an endpoint of ' || coalesce(e.application, e.source, 'nobody') as expected,
    d.recipient || ' of ' || coalesce(o.application, 'nobody') as found
from all_deliveries d
join events e on e.id = d.event_id
left join (
    select r.recipient, boathook.show_id('app', p.application_id) as application
    from (select distinct recipient from all_deliveries where starts_with(recipient, 'endpoint:')) as r
    join boathook.endpoint p on p.id = boathook.endpoint_of(r.recipient)
) as o on o.recipient = d.recipient
where starts_with(d.recipient, 'endpoint:')
    and (o.application <> e.application or (o.application is null and d.is_open) or e.application is null)

-- name: find_unknown_applications
-- Finds events of applications that never existed.
select e.id, null::integer as ordinal, 'a known application' as expected, 'unknown: ' || e.application as found
from events e
join (
    select n.application
    from (select distinct application from events where application ~ '^app_[0-9a-z]{27}$') as n
    left join boathook.application a on a.id = boathook.read_id('app', n.application)
    where a.id is null
) as unknown on unknown.application = e.application

-- name: find_half_expunged
-- Finds events that are marked as without content but have some.
select id, null::integer as ordinal, 'no content since ' || expunged_at as expected, size || ' bytes' as found
from events
where expunged_at is not null and size > 0

-- name: gather_memory
-- Reads the dedup keys of a range of events. $3 has one event of each source found so far, and $4 its key, which was
-- stored: while an older key of a source is stored, a newer one cannot have expired. Days of retention: $5 has the
-- sources, $6 their days, $7 the default. Rows in order are dropped early, because a range may be large. Keys of events
-- that another installation stores do not count; a message that was passed on to one may have such a key.
with keys as materialized (
    select key, event_id, item_path, body_sha256, expires_at > now() as is_kept
    from boathook.dedup where event_id >= $1 and event_id < $2 and home is null
),
events as materialized (
    select id, coalesce(source, '') as source, source is null as is_published, origin, accepted_at, dedup_key, body_sha256, home
    from boathook.event where id >= $1 and id < $2
),
all_deliveries as materialized (
    select event_id, ordinal::integer as ordinal, recipient, is_replay, item_path
    from boathook.delivery where event_id >= $1 and event_id < $2
    union all
    select event_id, ordinal::integer, recipient, is_replay, item_path
    from boathook.delivery_archive where event_id >= $1 and event_id < $2
),
unlike as materialized (
    select k.key, k.event_id, k.body_sha256 as known_sha256, e.*
    from keys k
    full join events e on e.id = k.event_id
    where k.event_id is null or e.id is null or (k.body_sha256 <> e.body_sha256 and k.item_path is null)
),
known as materialized (
    select e.source, e.id, k.key, e.accepted_at
    from (select id, coalesce(source, '') as source, accepted_at from boathook.event where id = any ($3::uuid[])) as e
    join (select key, event_id from boathook.dedup where key = any ($4::uuid[]) and expires_at > now()) as k on k.event_id = e.id
),
witnesses as materialized (
    select source, id, key, accepted_at from known
    union all
    (select distinct on (e.source) e.source, e.id, k.key, e.accepted_at
     from events e
     join keys k on k.event_id = e.id and k.is_kept
     where not exists (select from known w where w.source = e.source)
     order by e.source, e.accepted_at)
),
days as (
    select * from unnest($5::text[], $6::float8[]) as s (source, days)
)

-- name: list_witnesses
-- Returns an early event of each source whose key is still stored, with that key.
select id, key, source from witnesses

-- name: sum_memory
-- Counts the keys of a range of events.
select 'remembered' as name, count(*) as number from keys

-- name: find_forgotten_events
-- Finds events, and items with deliveries, whose dedup key is gone before its time. Messages with an id of their own
-- are remembered for 30 days at most; those without for a day, for their idempotency keys. If an event has no key, no
-- older event of its source may have one, unless keys were never dropped: raising the days does not restore a dropped
-- key.
select f.id, f.ordinal, 'a dedup key' || coalesce(' of item ' || f.item_path, '') as expected,
    'none; ' || case when f.is_published then 'published' else 'source ' || f.source end as found
from (
    select id, null::integer as ordinal, null as item_path, source, is_published, origin, accepted_at, dedup_key
    from unlike where event_id is null and home is null
    union all
    select e.id, o.ordinal, o.item_path, e.source, e.is_published, e.origin, e.accepted_at, e.dedup_key
    from (select * from all_deliveries where item_path is not null and not is_replay) as o
    join events e on e.id = o.event_id
    left join keys k on k.event_id = o.event_id and k.item_path = o.item_path
    where k.event_id is null
) as f
left join days s on s.source = f.source
left join witnesses w on w.source = f.source
where f.accepted_at > now() - make_interval(
        secs => 86400 * least($7::float8, s.days, case when f.is_published then 30 end))
    and not (f.origin = 'published' and f.accepted_at < now() - interval '1 day'
        and f.dedup_key = boathook.show_id('evt', f.id))
    and (f.accepted_at > w.accepted_at or not exists (select from boathook.purge_log where kind = 'dedup' and dropped > 0))

-- name: find_keys_without_event
-- Finds dedup keys of events that are not stored and were never dropped.
select event_id as id, null::integer as ordinal, 'the event that it remembers' as expected,
    'key ' || key || ', no event' as found
from unlike
where id is null
    and boathook.id_time(event_id) >= coalesce(
        (select max(at) from boathook.purge_log where kind = 'event' and dropped > 0), '-infinity')

-- name: find_shared_keys
-- Finds events, or items of them, with more than one dedup key.
select event_id as id, null::integer as ordinal, 'one dedup key' || coalesce(' of item ' || item_path, '') as expected,
    count(*) || ' keys' as found
from keys
group by event_id, item_path
having count(*) > 1

-- name: find_wrong_key_bodies
-- Finds dedup keys with another body hash than their event; keys of items hash only a part of the body.
select id, null::integer as ordinal, 'SHA-256 ' || left(encode(body_sha256, 'hex'), 12) || '…, as of its body' as expected,
    'key ' || key || ' has ' || left(encode(known_sha256, 'hex'), 12) || '…' as found
from unlike
where id is not null and event_id is not null

-- name: find_wrong_items
-- Finds deliveries of one item of an event that was stored as a whole, and whole deliveries of an event stored by item.
select o.event_id as id, o.ordinal, 'a delivery of one item' as expected, o.recipient || ' has a delivery of the whole event' as found
from all_deliveries o
join (select distinct event_id from keys where item_path is not null) as k on k.event_id = o.event_id
where o.item_path is null
union all
select o.event_id, o.ordinal, 'a delivery of the whole event', o.recipient || ' has a delivery of item ' || o.item_path
from (select * from all_deliveries where item_path is not null) as o
join keys k on k.event_id = o.event_id and k.item_path is null

-- name: find_wrong_bodies
-- Compares the bodies of a range of events with their hashes; skips those whose content was deleted.
select id, null::integer as ordinal, 'SHA-256 ' || left(encode(body_sha256, 'hex'), 12) || '…' as expected,
    octet_length(body) || ' bytes with another' as found
from boathook.event
where id >= $1 and id < $2 and expunged_at is null and sha256(body) <> body_sha256

-- name: sum_conflicts
-- Counts a range of conflicts, and their requests.
select f.name, f.number
from (
    select count(*) as conflicts, coalesce(sum(seen), 0)::bigint as requests
    from boathook.conflict where id >= $1 and id < $2
) as c
cross join lateral (values ('conflicts', c.conflicts), ('conflicting_requests', c.requests)) as f (name, number)

-- name: find_wrong_conflicts
-- Finds conflicts of events that were never stored, and conflicts that do not differ from their event. Each event is
-- looked up separately, because it may be anywhere.
select c.id, null::integer as ordinal, 'another ' || c.differs || ' than that of ' || boathook.show_id('evt', c.event_id) as expected,
    case when e.id is null then 'no such event' else 'the same ' || c.differs end as found
from boathook.conflict c
left join lateral (
    select id, body_sha256, dedup_key from boathook.event where id = c.event_id limit 1
) as e on true
where c.id >= $1 and c.id < $2 and (
    (e.id is null and boathook.id_time(c.event_id) >= coalesce(
        (select max(at) from boathook.purge_log where kind = 'event' and dropped > 0), '-infinity'))
    or (e.id is not null and c.differs = 'body' and c.body_sha256 = e.body_sha256)
    or (e.id is not null and c.differs = 'key' and c.dedup_key = e.dedup_key))

-- name: find_wrong_acceptances
-- Finds accepted conflicts whose event was never stored, or is not what the conflict became.
select c.id, null::integer as ordinal, 'event ' || boathook.show_id('evt', c.accepted_as) || ' with its body' as expected,
    case when e.id is null then 'no such event' when e.origin <> 'accepted_conflict' then 'its origin is ' || e.origin
        when e.dedup_key <> boathook.show_id('cfl', c.id) then 'its key is ' || e.dedup_key
        else 'another source, application or body' end as found
from boathook.conflict c
left join lateral (
    select id, origin, source, application, dedup_key, body_sha256 from boathook.event where id = c.accepted_as limit 1
) as e on true
where c.id >= $1 and c.id < $2 and c.accepted_as is not null
    and (e.id is null or e.origin <> 'accepted_conflict' or e.dedup_key <> boathook.show_id('cfl', c.id)
        or e.body_sha256 <> c.body_sha256 or e.source is distinct from c.source
        or e.application is distinct from c.application)
    and (e.id is not null or boathook.id_time(c.accepted_as) >= coalesce(
        (select max(at) from boathook.purge_log where kind = 'event' and dropped > 0), '-infinity'))

-- name: find_wrong_conflict_bodies
-- Compares the bodies of a range of conflicts with their hashes.
select id, null::integer as ordinal, 'SHA-256 ' || left(encode(body_sha256, 'hex'), 12) || '…' as expected,
    octet_length(body) || ' bytes with another' as found
from boathook.conflict
where id >= $1 and id < $2 and sha256(body) <> body_sha256

-- name: sum_rejections
-- Counts a range of rejections.
select 'rejections' as name, count(*) as number from boathook.rejection where id >= $1 and id < $2

-- name: find_wrong_rejections
-- Finds accepted rejections whose event was never stored or has another source.
select r.id, null::integer as ordinal, 'event ' || boathook.show_id('evt', r.event_id) || ' of ' || r.source as expected,
    case when e.id is null then 'no such event' else 'it is of ' || coalesce(e.source, 'no source') end as found
from boathook.rejection r
left join lateral (
    select id, source from boathook.event where id = r.event_id limit 1
) as e on true
where r.id >= $1 and r.id < $2 and r.event_id is not null and e.source is distinct from r.source
    and (e.id is not null or boathook.id_time(r.event_id) >= coalesce(
        (select max(at) from boathook.purge_log where kind = 'event' and dropped > 0), '-infinity'))

-- name: page_heads
-- Walks from one order key to the next after recipient $1 and key $2, for $3 steps, however many deliveries wait behind
-- each; returns the position, and which first deliveries wait for a predecessor that does not exist. That happens
-- briefly when the predecessor ends while the delivery is inserted; the keeper fixes it, so only those older than a
-- minute count.
with recursive heads as (
    (select recipient, order_key, event_id, ordinal, is_blocked, enqueued_at, 1 as step
     from boathook.delivery
     where order_key is not null and state <> 'dead' and (recipient, order_key) > ($1, $2)
     order by recipient, order_key, seq
     limit 1)
    union all
    select n.*, h.step + 1
    from heads h
    cross join lateral (
        select recipient, order_key, event_id, ordinal, is_blocked, enqueued_at
        from boathook.delivery
        where order_key is not null and state <> 'dead' and (recipient, order_key) > (h.recipient, h.order_key)
        order by recipient, order_key, seq
        limit 1
    ) as n
    where h.step < $3::integer
)
select h.recipient, h.order_key, h.event_id as id, h.ordinal::integer as ordinal, 'nothing before it of order key ' || h.order_key as expected,
    'it waits at ' || h.recipient || ' since ' || h.enqueued_at as found,
    h.is_blocked and h.enqueued_at < now() - interval '1 minute' and not exists (
        select from boathook.delivery o
        where o.recipient = h.recipient and o.order_key = h.order_key and o.state = 'leased') as is_stuck
from heads h
order by h.step

-- name: page_seals
-- Checks the seals of $2 audit rows from position $1 on; the first was checked before, and the second depends on it.
-- After the last row of all it also checks whether that row was sealed last.
with chain as (
    select a.id as row, a.actor, a.action, a.sealed_as, a.seal, coalesce(lag(a.sealed_as) over w, $1 - 1) as before,
        sha256(coalesce(lag(a.seal) over w, '') || boathook.audit_content(a)) as due
    from boathook.audit a
    where a.sealed_as >= $1::bigint
    window w as (order by a.sealed_as)
    order by a.sealed_as
    limit $2
),
newest as (
    select coalesce(max(sealed_as), 0) as place, (array_agg(seal order by sealed_as desc))[1] as seal, count(*) as rows from chain
)
select place, null::uuid as id, null::integer as ordinal, expected, found, is_broken, is_end
from (
    select s.sealed_as as place,
        'place ' || before + 1 || ' of the chain, and the hash of its content and what was before' as expected,
        case when s.sealed_as <> before + 1 then 'row ' || s.row || ' at place ' || s.sealed_as
            else 'row ' || s.row || ' with another seal: ' || s.action || ' by ' || s.actor end as found,
        s.sealed_as <> before + 1 or s.seal <> s.due as is_broken, false as is_end
    from chain s
    union all
    select n.place, 'the last seal at place ' || coalesce(h.place, 0), 'it at place ' || n.place,
        coalesce(h.place, 0) <> n.place or h.seal is distinct from n.seal, true
    from newest n left join boathook.audit_head h on true
    where n.rows < $2
) as judged
order by place, is_end

-- name: find_double_leases
-- Finds order keys with more than one leased delivery.
select (array_agg(event_id order by seq))[1] as id, (array_agg(ordinal::integer order by seq))[1] as ordinal,
    'one lease of order key ' || order_key || ' at ' || recipient as expected, count(*) || ' leases' as found
from boathook.delivery
where state = 'leased' and order_key is not null
group by recipient, order_key
having count(*) > 1

-- name: find_uncounted_purges
-- Compares the recorded purges with the number counted as dropped.
select null::uuid as id, null::integer as ordinal, counted || ' purges, as counted' as expected, recorded || ' recorded' as found
from (
    select (select count(*) from boathook.audit where action = 'dead.purge') as recorded,
        (select coalesce(sum(dropped), 0) from boathook.purge_log where kind = 'dead letter' and reason = 'purged') as counted
) as purges
where recorded <> counted

-- name: find_missing_guards
-- Finds constraints, indexes and triggers of the schema that are missing, invalid or switched off.
select null::uuid as id, null::integer as ordinal, needed.name as expected, 'missing, invalid or switched off' as found
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

-- name: show_broken
-- Returns the name of an invariant, the number of rows that violate it, and the first few of them; integrity.py
-- replaces the words in braces.
select '{name}' as rule, id, ordinal, expected, found, total
from (
    select id, ordinal, expected, found, count(*) over () as total
    from (
        {statement}
    ) as broken
    limit 5
) as few

-- name: show_sums
-- Returns totals in the result columns of a query.
select 'figure' as rule, null::uuid as id, null::integer as ordinal, name as expected, null as found, number as total
from (
    {statement}
) as sums

-- name: show_witnesses
-- Returns witnesses in the result columns of a query.
select 'witness' as rule, id, null::integer as ordinal, source as expected, key::text as found, 1 as total
from (
    {statement}
) as named

-- name: list_dropped
-- Counts what retention and operators have deleted, by kind and reason.
select kind, reason, sum(dropped)::bigint as dropped from boathook.purge_log group by 1, 2 order by 1, 2
