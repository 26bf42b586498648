-- fragment: describe_due
select
    w.recipient, w.due_at, w.due_at <= now() as is_due, p.id, p.is_disabled, p.concurrency,
    p.deleted_at is not null or a.deleted_at is not null as is_deleted,
    coalesce(p.throttle_rate, a.throttle_rate) as rate, h.open_until,
    extract(epoch from clock_timestamp() - statement_timestamp())::float8 as took_s
from page w
left join boathook.endpoint p on p.id = case when w.due_at <= now() then boathook.endpoint_of(w.recipient) end
left join boathook.application a on a.id = p.application_id
left join boathook.endpoint_health h on h.endpoint_id = p.id
order by w.recipient

-- name: list_due
-- Walks from one endpoint with pending work to the next, however many deliveries wait at each, and reads the due ones.
-- $1 and $2 bound the recipients, $3 the steps, so that ten thousand endpoints cost a few short queries.
with recursive walked as (
    (select recipient, due_at
     from boathook.delivery
     where state = 'pending' and not is_blocked and recipient > $1 and recipient <= $2
     order by recipient, due_at
     limit 1)
    union all
    select n.recipient, n.due_at
    from walked w
    cross join lateral (
        select recipient, due_at
        from boathook.delivery
        where state = 'pending' and not is_blocked and recipient > w.recipient and recipient <= $2
        order by recipient, due_at
        limit 1
    ) as n
),
page as materialized (
    select recipient, due_at from walked limit $3
)
{describe_due}

-- name: find_due_of
-- Reads which of some endpoints have due deliveries.
with page as materialized (
    select n.recipient, n.due_at
    from unnest($1::text[]) as r (recipient)
    cross join lateral (
        select recipient, due_at
        from boathook.delivery
        where state = 'pending' and not is_blocked and recipient = r.recipient and due_at <= now()
        order by due_at
        limit 1
    ) as n
)
{describe_due}

-- name: claim_endpoint_deliveries
-- Leases due deliveries to endpoints that are not disabled, deleted or paused, up to a number of slots for each, and
-- reads their content. Only a probe ($9) may go to an endpoint whose breaker is open. $10 names a
-- header to read of those stored with them, or is null.
with wanted as materialized (
    select w.*, p.revision, null::boolean as is_suspect,
        coalesce(h.failures > 0 or h.failing_since is not null or h.open_until is not null, false) as is_ailing
    from unnest(
            $4::text[], $5::text::uuid[], $6::text::integer[], $7::text::timestamptz[], $8::text::integer[],
            $9::text::boolean[])
        as w (recipient, endpoint_id, slots, since, most, is_probe)
    join boathook.endpoint p on p.id = w.endpoint_id and not p.is_disabled and p.deleted_at is null
    join boathook.application a on a.id = p.application_id and a.deleted_at is null
    left join boathook.endpoint_health h on h.endpoint_id = p.id
    where h.open_until is null or w.is_probe
),
{lease_due}
select
    c.event_id, c.ordinal, c.fence, c.attempts - c.attempts_before as attempt, c.enqueued_at, c.is_manual, c.due_at,
    c.order_key is not null as is_ordered, w.endpoint_id, w.revision, w.is_ailing, w.is_probe,
    e.content_type, e.body, e.accepted_at, clock_timestamp() as claimed_at, e.kept_header
from claimed c
join wanted w on w.recipient = c.recipient
left join lateral (
    select content_type, case when expunged_at is null then body end as body, accepted_at,
        headers ->> $10::text as kept_header
    from boathook.event where id = c.event_id
    limit 1
) as e on true
order by c.due_at, c.seq

-- name: load_endpoints
-- Reads the destinations of endpoints and their secrets: the current secret first, then old ones that still sign.
select
    p.id, p.url, p.revision, p.encrypted_headers, p.encrypted_auth, p.timeout_s, p.retry::text as retry,
    p.destination, p.destination_fields::text as destination_fields, p.encrypted_destination,
    array(
        select s.encrypted from boathook.endpoint_secret s
        where s.endpoint_id = p.id and (s.expires_at is null or s.expires_at > now())
        order by s.expires_at is not null, s.id desc
    ) as secrets,
    (select min(s.expires_at) from boathook.endpoint_secret s where s.endpoint_id = p.id and s.expires_at > now()) as good_until
from boathook.endpoint p
where p.id = any ($1::uuid[])

-- name: ensure_health
-- Inserts the health rows of endpoints that have none, in the order of their ids.
insert into boathook.endpoint_health (endpoint_id)
select id from boathook.endpoint where id = any ($1::uuid[]) order by id
on conflict (endpoint_id) do nothing

-- name: take_tokens
-- Takes up to a number of tokens from each endpoint's rate, in requests a second, and returns when the next is free.
-- The rate limit is stored as one time (GCRA): a request may be sent while that time is less than a burst ahead. A
-- burst is a tenth of a second's requests, at least one.
with wanted as (
    select w.endpoint_id, w.number, 1.0 / w.rate as gap_s, greatest(1, ceil(w.rate / 10.0)) as burst
    from unnest($1::uuid[], $2::integer[], $3::integer[]) as w (endpoint_id, number, rate)
    order by w.endpoint_id
),
held as materialized (
    select w.*, greatest(coalesce(h.allowed_at, '-infinity'), h.now) as at, h.now
    from wanted w
    cross join lateral (
        select allowed_at, clock_timestamp() as now from boathook.endpoint_health
        where endpoint_id = w.endpoint_id
        for update
    ) as h
),
granted as (
    select *, least(number, greatest(0, burst - ceil(extract(epoch from at - now) / gap_s)))::integer as taken from held
),
kept as (
    update boathook.endpoint_health h set allowed_at = g.at + make_interval(secs => g.taken * g.gap_s)
    from granted g
    where h.endpoint_id = g.endpoint_id and g.taken > 0
)
select
    endpoint_id, taken,
    greatest(0, extract(epoch from at - now) + (taken + 1 - burst) * gap_s)::float8 as next_s
from granted

-- name: return_tokens
-- Returns tokens that no request used.
with wanted as (
    select w.endpoint_id, w.number, w.rate
    from unnest($1::uuid[], $2::integer[], $3::integer[]) as w (endpoint_id, number, rate)
),
held as materialized (
    select h.endpoint_id from boathook.endpoint_health h
    where h.endpoint_id in (select endpoint_id from wanted) order by h.endpoint_id for update
)
update boathook.endpoint_health h
set allowed_at = h.allowed_at - make_interval(secs => w.number::float8 / w.rate)
from wanted w, held
where h.endpoint_id = w.endpoint_id and held.endpoint_id = w.endpoint_id

-- name: take_probes
-- Takes the single probe of each endpoint whose pause is over for this sender. It expires $2 after the endpoint's
-- timeout, which is $3 seconds unless it has its own, in case the sender dies with it.
with held as materialized (
    select endpoint_id from boathook.endpoint_health
    where endpoint_id = any ($1::uuid[]) and open_until <= clock_timestamp()
    order by endpoint_id
    for update skip locked
)
update boathook.endpoint_health h
set open_until = clock_timestamp() + $2::interval + make_interval(secs => coalesce(p.timeout_s, $3::float8))
from held join boathook.endpoint p on p.id = held.endpoint_id
where h.endpoint_id = held.endpoint_id
returning h.endpoint_id, h.open_until

-- name: release_probes
-- Returns probes that were not made: the next may be taken in $3.
update boathook.endpoint_health h set open_until = clock_timestamp() + $3::interval
from unnest($1::uuid[], $2::timestamptz[]) as u (endpoint_id, open_until)
where h.endpoint_id = u.endpoint_id and h.open_until = u.open_until

-- name: settle_endpoint_deliveries
-- Ends attempts whose fence still holds, in key order, and records them; returns them. Empty codes and errors mean
-- none. A delivery that was woken during its attempt is handled as in boathook.record_failure.
with ended as (
    select * from unnest(
        $1::text::uuid[], $2::text::integer[], $3::text::bigint[], $4::text::text[], $5::text::timestamptz[], $6::text[],
        $7::text[], $8::text::uuid[], $9::text[], $10::text::integer[], $11::text::integer[], $12::text[], $13::bytea[],
        $14::text::timestamptz[]
    ) with ordinality as u (
        event_id, ordinal, fence, next_state, next_due_at, code, error, attempt_id, url, status, duration_ms,
        request_headers, response, started_at, position)
    order by event_id, ordinal
),
held as materialized (
    select u.*, nullif(u.code, '') as next_code, nullif(u.error, '') as next_error, d.recipient, d.attempts, d.order_key, d.is_replay, d.replays, d.item_path, d.item_type, d.is_manual,
        d.woken_by, d.woken_by is not null and u.next_state = 'dead' as is_revived, clock_timestamp() as ended_at
    from ended u
    cross join lateral (
        select recipient, attempts, order_key, is_replay, replays, item_path, item_type, is_manual, woken_by
        from boathook.delivery
        where event_id = u.event_id and ordinal = u.ordinal and fence = u.fence and leased_by is not null
        limit 1
        for update
    ) as d
),
failed as materialized (
    select * from held where next_state <> 'succeeded'
),
gone as (
    delete from boathook.delivery d
    where d.event_id = any (array(select event_id from held where next_state = 'succeeded'))
        and ((d.event_id, d.ordinal) in (select event_id, ordinal from held where next_state = 'succeeded')) is true
),
back as (
    update boathook.delivery d
    set (state, due_at, enqueued_at, attempts_before, free_retries, replays, is_manual, dead_at, code, error) = (
            select case when h.is_revived then 'pending' else h.next_state end,
                case when h.woken_by is null then coalesce(h.next_due_at, d.due_at) else h.ended_at end,
                case when h.is_revived then h.ended_at else d.enqueued_at end,
                case when h.is_revived then d.attempts else d.attempts_before end,
                case when h.is_revived then 0 else d.free_retries end,
                d.replays + h.is_revived::integer, d.is_manual and not h.is_revived,
                case when h.next_state = 'dead' and not h.is_revived then h.ended_at end, h.next_code, h.next_error
            from failed h
            where h.event_id = d.event_id and h.ordinal = d.ordinal
        ),
        crashes = 0, leased_by = null, lease_until = null, woken_by = null
    where d.event_id = any (array(select event_id from failed))
        and ((d.event_id, d.ordinal) in (select event_id, ordinal from failed)) is true
),
noted as (
    insert into boathook.audit (actor, action, subject)
    select woken_by, 'dead.replay', boathook.show_id('dlv', event_id) || '_' || ordinal from held where is_revived
),
recorded as (
    insert into boathook.attempt (
        event_id, ordinal, number, outcome, code, error, worker, started_at, ended_at, id, recipient, url, status,
        duration_ms, request_headers, response, is_manual)
    select
        event_id, ordinal, attempts, case next_state when 'succeeded' then 'succeeded' else 'failed' end, next_code,
        next_error, $15, least(started_at, ended_at), ended_at, attempt_id, recipient, url, status, duration_ms,
        request_headers::json, response, is_manual
    from held
),
closed as (
    insert into boathook.delivery_archive (
        event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays, ended_at, item_path, item_type, is_manual)
    select event_id, ordinal, recipient, 'succeeded', order_key, is_replay, attempts, replays, ended_at, item_path,
        item_type, is_manual
    from held where next_state = 'succeeded'
)
select position::integer as position, recipient,
    case when next_state <> 'pending' and not is_revived then order_key end as freed_key,
    case when woken_by is not null and next_state <> 'succeeded' then pg_notify('boathook_due', '') end as told
from held

-- name: end_overtaken
-- Settles as ignored the scheduled deliveries of these messages to these recipients, because a manual resend succeeded;
-- deliveries with a running attempt are skipped.
with held as materialized (
    select d.event_id, d.ordinal
    from (select distinct * from unnest($1::uuid[], $2::text[]) as u (event_id, recipient) order by event_id) as u
    cross join lateral (
        select event_id, ordinal
        from boathook.delivery
        where event_id = u.event_id and recipient = u.recipient and leased_by is null and dead_at is null
            and not is_manual
        order by ordinal
        for update skip locked
    ) as d
),
gone as (
    delete from boathook.delivery d
    where d.event_id = any (array(select event_id from held))
        and ((d.event_id, d.ordinal) in (select event_id, ordinal from held)) is true
    returning d.*
),
closed as (
    insert into boathook.delivery_archive (
        event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays, note, ended_at, item_path, item_type)
    select event_id, ordinal, recipient, 'ignored', order_key, is_replay, attempts, replays, $3, clock_timestamp(),
        item_path, item_type
    from gone
)
select event_id, ordinal::integer as ordinal, recipient, order_key from gone

-- name: record_overtaken
-- Records why deliveries ended without an attempt of their own.
insert into boathook.audit (actor, action, subject, note)
select $1, $2, subject, $4 from unnest($3::text[]) as u (subject)

-- name: mark_healthy
-- Resets the failures of endpoints that accepted a message; writes nothing for those without any. Returns which breakers
-- this closes.
with held as materialized (
    select endpoint_id, open_until is not null as was_open from boathook.endpoint_health
    where endpoint_id = any ($1::uuid[]) and (failures > 0 or failing_since is not null or open_until is not null)
    order by endpoint_id
    for update
)
update boathook.endpoint_health h
set failures = 0, failing_since = null, last_failed_at = null, open_until = null, pauses = 0
from held where h.endpoint_id = held.endpoint_id
returning h.endpoint_id, held.was_open

-- name: update_health
-- Counts consecutive failures, opens breakers and extends their pauses; returns the health of each endpoint. $3: a
-- success preceded these failures; $4: they are the endpoint's own fault; $5: one was a probe; $6: jitter in [0, 1). $7
-- is the number of failures that opens a breaker, $8 the first and $9 the longest pause, and $10 how long an endpoint
-- may fail without a success, or 0 for ever. Failures more than twice $10 apart restart that period.
with judged as (
    select * from unnest($1::uuid[], $2::integer[], $3::boolean[], $4::boolean[], $5::boolean[], $6::float8[])
        as j (endpoint_id, failed, is_after_success, is_theirs, is_probe, jitter)
    order by endpoint_id
),
held as materialized (
    select j.*, clock_timestamp() as now,
        case when j.is_after_success then 0 else h.failures end + j.failed as now_failures,
        case when not j.is_after_success
                and ($10 = interval '0' or h.last_failed_at is null or h.last_failed_at > now() - 2 * $10::interval)
            then h.failing_since end as since,
        case when not j.is_after_success then h.open_until end as open,
        case when j.is_after_success then 0 else h.pauses end as earlier_pauses,
        h.last_failed_at as failed_at, h.open_until is not null and j.is_after_success as has_closed
    from judged j
    cross join lateral (
        select * from boathook.endpoint_health where endpoint_id = j.endpoint_id for update
    ) as h
),
next as (
    select *,
        $7::integer > 0 and (case when open is null then now_failures >= $7::integer else is_probe end) as opens,
        case when is_theirs then coalesce(since, now) else since end as next_since
    from held
)
update boathook.endpoint_health h
set failures = n.now_failures,
    failing_since = n.next_since,
    last_failed_at = case when n.is_theirs then n.now else n.failed_at end,
    pauses = n.earlier_pauses + n.opens::integer,
    open_until = case when n.opens
        then n.now + make_interval(secs => least($9::float8, $8::float8 * 2 ^ least(n.earlier_pauses, 30)) * (0.8 + 0.4 * n.jitter))
        else n.open end
from next n
where h.endpoint_id = n.endpoint_id
returning h.endpoint_id, h.open_until, h.pauses, h.failing_since, n.has_closed, n.open is null and n.opens as has_opened,
    $10::interval > interval '0' and h.failing_since <= n.now - $10::interval as should_disable

-- name: lock_failing
-- Reads since when an endpoint has been failing, if its revision is still $2, and locks it against changes.
select coalesce(h.failing_since, now())
from boathook.endpoint p
left join boathook.endpoint_health h on h.endpoint_id = p.id
where p.id = $1 and p.revision = $2
for no key update of p

-- name: describe_endpoints
-- Reads the owners of these endpoints: only organizations that subscribe to operational webhooks, and no operational
-- endpoints.
select p.id, a.id as application_id, a.uid as application_uid, a.organization
from boathook.endpoint p
join boathook.application a on a.id = p.application_id
where p.id = any ($1::uuid[]) and not a.is_operational and exists (
    select from boathook.application o
    join boathook.endpoint l on l.application_id = o.id and l.deleted_at is null and not l.is_disabled
    where o.organization = a.organization and o.is_operational)

-- name: find_message_uids
-- Reads the ids that publishers gave to messages.
select id, dedup_key from boathook.event where id = any ($1::uuid[])

-- name: list_paused
-- Walks from one endpoint with pending work to the next and returns those that are deleted, and those that are disabled
-- with their maximum age ($3 unless they set their own).
with recursive walked as (
    (select recipient
     from boathook.delivery
     where state = 'pending' and not is_blocked and recipient > $1 and recipient <= $2
     order by recipient
     limit 1)
    union all
    select n.recipient
    from walked w
    cross join lateral (
        select recipient
        from boathook.delivery
        where state = 'pending' and not is_blocked and recipient > w.recipient and recipient <= $2
        order by recipient
        limit 1
    ) as n
)
select w.recipient, p.id is null or p.deleted_at is not null or a.deleted_at is not null as is_deleted,
    coalesce((p.retry ->> 'max_age_s')::float8, $3::float8) as max_age_s
from walked w
left join boathook.endpoint p on p.id = boathook.endpoint_of(w.recipient)
left join boathook.application a on a.id = p.application_id
where p.id is null or p.deleted_at is not null or a.deleted_at is not null or p.is_disabled

-- name: dead_letter_pending
-- Dead-letters the next pending deliveries of these recipients that are older than their maximum age; returns the
-- number.
with found as materialized (
    select f.event_id, f.ordinal
    from unnest($1::text[], $2::float8[]) as u (recipient, max_age_s)
    cross join lateral (
        select d.event_id, d.ordinal
        from (
            select event_id, ordinal, enqueued_at from boathook.delivery
            where recipient = u.recipient and state = 'pending' and not is_blocked
            union all
            select event_id, ordinal, enqueued_at from boathook.delivery
            where recipient = u.recipient and order_key is not null and state = 'pending' and is_blocked
        ) as d
        where d.enqueued_at < now() - make_interval(secs => u.max_age_s)
        limit $5
    ) as f
    limit $5
),
held as materialized (
    select d.event_id, d.ordinal
    from (select distinct * from found order by event_id, ordinal) as f
    cross join lateral (
        select event_id, ordinal
        from boathook.delivery
        where event_id = f.event_id and ordinal = f.ordinal and leased_by is null and dead_at is null
        limit 1
        for update skip locked
    ) as d
),
buried as (
    update boathook.delivery d
    set state = 'dead', dead_at = clock_timestamp(), is_blocked = false, code = $3, error = $4
    where d.event_id = any (array(select event_id from held))
        and ((d.event_id, d.ordinal) in (select event_id, ordinal from held)) is true
    returning 1
)
select count(*) from buried

-- name: delete_expired_secrets
-- Deletes secrets that no longer sign.
delete from boathook.endpoint_secret where expires_at < now()

-- name: delete_expired_answers
-- Deletes the next expired responses of idempotent requests.
delete from boathook.idempotency
where key in (select key from boathook.idempotency where expires_at < now() order by expires_at limit $1)

-- name: delete_ended_portal_keys
-- Deletes portal keys that ended more than a day ago.
delete from boathook.api_key where is_portal and least(expires_at, revoked_at) < now() - interval '1 day'
