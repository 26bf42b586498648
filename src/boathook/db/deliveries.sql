-- fragment: lease_due
-- Part of every claim: selects due deliveries for the rows of "wanted", and leases them for worker $1 until $2 from
-- now, at most $3 in total unless that is null. In "wanted", since is a recipient's watermark: deliveries due before it
-- are skipped, so that a claim does not scan dead index entries of finished deliveries while a long snapshot keeps
-- them. most limits its leases over all workers, or is null. is_suspect selects deliveries that have lost their worker
-- twice in a row, or only the others, or both if it is null. Only the first delivery of an order key is taken, and none
-- while another one of it is leased.
-- No statement of the queue joins the table of deliveries by its key, because the planner would choose the method for
-- the size that the table had when it was last vacuumed, and keep it. Rows are read by lateral lookups, and changed where
-- the array of their events, which is looked up in the index, and "(key in (...)) is true", which is hashed, agree.
picked as materialized (
    select d.event_id, d.ordinal
    from wanted w
    cross join lateral (
        select o.event_id, o.ordinal, o.due_at
        from boathook.delivery o
        where o.recipient = w.recipient and o.state = 'pending' and not o.is_blocked
          and o.due_at >= w.since and o.due_at <= now() and (w.is_suspect is null or w.is_suspect = (o.crashes >= 2))
          and (o.order_key is null or (
              not exists (
                  select from boathook.delivery b
                  where b.recipient = o.recipient and b.order_key = o.order_key and b.state <> 'dead' and b.seq < o.seq)
              and not exists (
                  select from boathook.delivery b
                  where b.recipient = o.recipient and b.order_key = o.order_key and b.state = 'leased')))
        order by o.due_at
        limit greatest(0, least(w.slots, w.most - (
            select count(*) from boathook.delivery l where w.most is not null and l.recipient = w.recipient and l.state = 'leased')))
        for update of o skip locked
    ) as d
    order by d.due_at
    limit $3::integer
),
claimed as (
    update boathook.delivery d
    set state = 'leased', attempts = d.attempts + 1, fence = d.fence + 1,
        leased_by = $1, lease_until = clock_timestamp() + $2::interval
    where d.event_id = any (array(select event_id from picked))
        and ((d.event_id, d.ordinal) in (select event_id, ordinal from picked)) is true
    returning d.*
)

-- name: claim_due
-- Leases due deliveries to handlers, up to a number of slots for each, and reads their events. The arrays are selected,
-- so that PostgreSQL cannot plan for their length: it would plan each claim again, which takes five times as long as
-- the claim.
with wanted as (
    select w.*, $8::boolean as is_suspect
    from unnest((select $4::text[]), (select $5::integer[]), (select $6::timestamptz[]), (select $7::integer[]))
        as w (recipient, slots, since, most)
),
{lease_due}
select
    c.event_id, c.ordinal, c.recipient, c.fence, c.attempts, c.attempts_before, c.enqueued_at, c.order_key, c.due_at,
    c.crashes, c.free_retries, c.item_path, c.item_type, clock_timestamp() as claimed_at, e.*
from claimed c
left join lateral (
    select {stored_event}
    from boathook.event where id = c.event_id
    limit 1
) as e on true
order by c.due_at, c.seq

-- name: lock_recipients
-- Locks these recipients for claims until the transaction ends, unless another transaction holds them; returns the
-- locked.
select recipient from unnest($1::text[]) as u (recipient)
where pg_try_advisory_xact_lock(hashtextextended('boathook.claim:' || recipient, 0))
order by recipient

-- name: renew_leases
-- Renews the leases still held with these fences and returns the lost ones; a lease that is being settled is skipped.
with leases as materialized (
    select * from unnest($1::uuid[], $2::integer[], $3::bigint[]) as u (event_id, ordinal, fence)
    order by event_id, ordinal
),
held as materialized (
    select d.event_id, d.ordinal
    from leases l
    cross join lateral (
        select event_id, ordinal
        from boathook.delivery
        where event_id = l.event_id and ordinal = l.ordinal and fence = l.fence and leased_by is not null
        limit 1
        for update skip locked
    ) as d
),
renewed as (
    update boathook.delivery d
    set lease_until = clock_timestamp() + $4::interval
    where d.event_id = any (array(select event_id from held))
        and ((d.event_id, d.ordinal) in (select event_id, ordinal from held)) is true
)
select l.event_id, l.ordinal, l.fence
from leases l
cross join lateral (
    select count(*) as number
    from boathook.delivery
    where event_id = l.event_id and ordinal = l.ordinal and fence = l.fence and leased_by is not null
) as d
where d.number = 0

-- name: record_failure
-- Records attempts that did not succeed, in key order; returns for each whether its fence still held.
select u.position, boathook.record_failure(
    u.event_id, u.ordinal, u.fence, u.due_at, u.outcome, u.code, u.error, u.traceback, u.worker, u.started_at,
    u.is_free, u.dependency) as is_moved
from (
    select * from unnest(
        $1::uuid[], $2::integer[], $3::bigint[], $4::timestamptz[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::timestamptz[], $11::boolean[], $12::text[]
    ) with ordinality as u (
        event_id, ordinal, fence, due_at, outcome, code, error, traceback, worker, started_at, is_free, dependency,
        position)
    order by event_id, ordinal
) as u

-- name: record_wait
-- Records attempts after which their deliveries wait, in key order; returns for each whether its fence still held.
select u.position, boathook.record_wait(
    u.event_id, u.ordinal, u.fence, u.key, u.until, u.code, u.note, u.worker, u.started_at) as is_moved
from (
    select * from unnest(
        $1::uuid[], $2::integer[], $3::bigint[], $4::text[], $5::timestamptz[], $6::text[], $7::text[], $8::text[],
        $9::timestamptz[]
    ) with ordinality as u (event_id, ordinal, fence, key, until, code, note, worker, started_at, position)
    order by event_id, ordinal
) as u

-- name: match_signals
-- Wakes deliveries whose wait did not see a signal, and whose signal did not see the wait. Of the two, the one that is
-- committed last is compared here with all of the other kind. Nothing counts as compared while another transaction
-- holds the delivery: the next round tries again.
with fresh as materialized (
    select id, key from boathook.wait_signal where not is_matched order by id limit $1
),
begun as materialized (
    select event_id, ordinal, key from boathook.delivery_wait where not is_matched limit $1
),
missed as materialized (
    select w.event_id, w.ordinal, w.key, w.attempts
    from boathook.delivery_wait w
    join boathook.wait_signal s on s.key = w.key
    where (s.id in (select id from fresh) or (w.event_id, w.ordinal) in (select event_id, ordinal from begun))
        and not pg_visible_in_snapshot(s.xid, w.snapshot)
    group by w.event_id, w.ordinal, w.key, w.attempts
),
waiting as materialized (
    select m.event_id, m.ordinal, m.key
    from missed m
    cross join lateral (
        select from boathook.delivery
        where event_id = m.event_id and ordinal = m.ordinal and attempts = m.attempts and state = 'pending'
            and due_at > clock_timestamp()
        limit 1
    ) as d
),
picked as materialized (
    select m.event_id, m.ordinal
    from missed m
    cross join lateral (
        select from boathook.delivery
        where event_id = m.event_id and ordinal = m.ordinal and attempts = m.attempts and state = 'pending'
            and due_at > clock_timestamp()
        limit 1
        for update skip locked
    ) as d
),
woken as (
    update boathook.delivery d
    set due_at = clock_timestamp(), enqueued_at = clock_timestamp()
    where d.event_id = any (array(select event_id from picked))
        and ((d.event_id, d.ordinal) in (select event_id, ordinal from picked)) is true
    returning d.event_id, d.ordinal
),
held as materialized (
    select key from waiting w
    where not exists (select from picked p where p.event_id = w.event_id and p.ordinal = w.ordinal)
),
compared as (
    update boathook.wait_signal set is_matched = true
    where id in (select id from fresh) and key not in (select key from held)
),
compared_waits as (
    update boathook.delivery_wait w
    set is_matched = true,
        snapshot = case
            when (event_id, ordinal) in (select event_id, ordinal from woken) then pg_current_snapshot() else snapshot
        end
    where (event_id, ordinal) in (
            select event_id, ordinal from begun union all select event_id, ordinal from woken)
        and key not in (select key from held)
),
notified as (
    select pg_notify('boathook_due', '') from woken limit 1
)
select (select count(*) from woken) + 0 * (select count(*) from notified)

-- name: drop_signals
-- Deletes signals that are older than $1 seconds.
delete from boathook.wait_signal where is_matched and at < now() - make_interval(secs => $1::float8)

-- name: drop_waits
-- Deletes the waits of deliveries that have ended.
delete from boathook.delivery_wait w
where coalesce(
    (select d.state from boathook.delivery d where d.event_id = w.event_id and d.ordinal = w.ordinal limit 1), 'dead'
) = 'dead'

-- name: release_claims
-- Releases claims whose attempt never started: pending as before, without counting the attempt.
update boathook.delivery d
set state = 'pending', attempts = d.attempts - 1, leased_by = null, lease_until = null, woken_by = null
where d.event_id = any ($1::uuid[]) and d.leased_by is not null
    and ((d.event_id, d.ordinal, d.fence) in (select * from unnest($1::uuid[], $2::integer[], $3::bigint[]))) is true

-- name: find_lost
-- Locks the leases of workers known to be dead or, if none are named, those that have expired, with the policy of their
-- route or endpoint.
select
    d.event_id, d.ordinal, d.fence, d.attempts - d.attempts_before as attempt, d.enqueued_at, d.free_retries, d.leased_by, d.recipient,
    d.lease_until, clock_timestamp() as now, coalesce(r.policy::text, p.retry::text) as policy,
    d.recipient ^@ 'endpoint:' as is_sent, e.source, r.source is null as is_any_source
from boathook.delivery d
left join boathook.event e on e.id = d.event_id
left join lateral (
    select policy, source from boathook.route
    where recipient = d.recipient
    order by is_active desc, (source = e.source) is true desc, position
    limit 1
) as r on true
left join boathook.endpoint p on p.id = boathook.endpoint_of(d.recipient)
where d.state = 'leased' and (d.leased_by = any ($1::text[]) or cardinality($1::text[]) = 0 and d.lease_until < clock_timestamp())
order by d.lease_until
limit 200
for update of d skip locked

-- name: unblock_heads
-- Unblocks the first delivery of an order key that was left blocked, which a race between its insertion and the end of
-- its predecessor can cause. Walks from one order key to the next, however many deliveries wait behind each.
with recursive heads as (
    (select recipient, order_key, is_blocked and state = 'pending' as is_stuck
     from boathook.delivery
     where order_key is not null and state <> 'dead'
     order by recipient, order_key, seq
     limit 1)
    union all
    select n.recipient, n.order_key, n.is_stuck
    from heads h
    cross join lateral (
        select recipient, order_key, is_blocked and state = 'pending' as is_stuck
        from boathook.delivery
        where order_key is not null and state <> 'dead' and (recipient, order_key) > (h.recipient, h.order_key)
        order by recipient, order_key, seq
        limit 1
    ) as n
),
stuck as materialized (
    select recipient, order_key from heads where is_stuck
)
select count(*) from stuck cross join lateral boathook.unblock(stuck.recipient, stuck.order_key)

-- name: find_held
-- Returns whether this fence still holds, after waiting for a transaction that is settling it.
select fence = $3 and state = 'leased' from boathook.delivery where event_id = $1 and ordinal = $2 for update

-- name: find_settled
-- Returns whether this attempt succeeded.
select exists (
    select from boathook.attempt
    where event_id = $1 and ordinal = $2 and number = $3 and outcome in ('succeeded', 'ignored'))

-- name: recall_effect
-- Reads the stored result of a side effect, and whether the caller's lease still holds.
select
    exists (
        select from boathook.delivery where event_id = $1 and ordinal = $2 and fence = $3 and leased_by is not null
    ) as is_held,
    (select result::text from boathook.side_effect where event_id = $1 and recipient = $4 and name = $5) as result

-- name: save_side_effect
-- Stores a side effect immediately, whatever the result of the handler's transaction; the first result is kept.
insert into boathook.side_effect (event_id, recipient, name, result) values ($1, $2, $3, $4::json)
on conflict (event_id, recipient, name) do nothing

-- name: count_backlog
-- Counts the unfinished deliveries and dead letters of each recipient.
select
    recipient,
    count(*) filter (where state = 'pending' and not is_blocked and due_at <= now()) as due,
    count(*) filter (where state = 'pending' and not is_blocked and due_at > now()) as later,
    count(*) filter (where is_blocked) as blocked,
    count(*) filter (where state = 'leased') as leased,
    count(*) filter (where state = 'dead') as dead,
    coalesce(extract(epoch from now() - min(due_at)
        filter (where state = 'pending' and not is_blocked and due_at <= now())), 0)::float8 as oldest_due_s,
    array[
        count(*) filter (where state = 'pending' and not is_blocked and due_at <= now() and due_at > now() - interval '10 s'),
        count(*) filter (where state = 'pending' and not is_blocked and due_at <= now() - interval '10 s' and due_at > now() - interval '1 min'),
        count(*) filter (where state = 'pending' and not is_blocked and due_at <= now() - interval '1 min' and due_at > now() - interval '10 min'),
        count(*) filter (where state = 'pending' and not is_blocked and due_at <= now() - interval '10 min' and due_at > now() - interval '1 h'),
        count(*) filter (where state = 'pending' and not is_blocked and due_at <= now() - interval '1 h')
    ] as ages
from boathook.delivery
group by recipient
order by recipient

-- name: age_of_oldest_snapshot
-- Returns the age of the server's oldest open snapshot in seconds; it prevents vacuum from cleaning the queue.
select coalesce(extract(epoch from now() - min(xact_start)), 0)::float8
from pg_stat_activity where backend_xmin is not null

-- name: find_troubled_endpoints
-- Lists the endpoints whose newest requests failed, unless they are disabled or paused, and counts the disabled ones.
select
    array(select e.id from boathook.endpoint_health h join boathook.endpoint e on e.id = h.endpoint_id
          where h.failures > 0 and h.open_until is null and not e.is_disabled and e.deleted_at is null
          order by h.last_failed_at desc limit 200) as failed,
    (select count(*) from boathook.endpoint where is_disabled and deleted_at is null) as disabled

-- name: elect_keeper
-- Makes this session the keeper, unless another session is.
select pg_try_advisory_lock(hashtextextended('boathook.keeper', 0))
