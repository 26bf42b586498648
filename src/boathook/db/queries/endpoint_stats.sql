-- Queries for pages about applications and endpoints. Each reads a bounded number of rows, however long the history is;
-- searches return where they stopped.

-- name: search_applications
-- Finds applications of an organization by a part of their names or uids, newest first, with the number of endpoints.
select a.*, s.endpoints, s.disabled
from (
    select * from boathook.application
    where organization = $1 and deleted_at is null and not is_operational and id < $2
        and ($3::text is null or name ilike $3 or uid ilike $3)
    order by id desc
    limit $4
) as a
cross join lateral (
    select count(*) as endpoints, count(*) filter (where e.is_disabled) as disabled
    from boathook.endpoint e where e.application_id = a.id and e.deleted_at is null
) as s
order by a.id desc

-- name: search_endpoints
-- Finds endpoints of an organization by a part of their URLs, uids or descriptions among its newest $3, newest first.
select l.id, l.url, l.application_id, l.application_name
from (
    select e.id, e.url, e.uid, e.description, a.id as application_id, a.name as application_name
    from boathook.endpoint e
    join boathook.application a on a.id = e.application_id
    where a.organization = $1 and e.deleted_at is null and a.deleted_at is null and not a.is_operational
    order by e.id desc
    limit $3
) as l
where l.url ilike $2 or l.uid ilike $2 or l.description ilike $2
order by l.id desc
limit $4

-- name: find_owner
-- Returns the application of an organization that owns an endpoint; only $3 if that is not null.
select a.id from boathook.endpoint e
join boathook.application a on a.id = e.application_id
where e.id = $2 and a.organization = $1 and e.deleted_at is null and a.deleted_at is null and not a.is_operational
    and ($3::uuid is null or a.id = $3)

-- name: list_troubled
-- Returns an organization's endpoints that are disabled or have failed since their last success, latest change first.
select a.name as application_name, a.id as application_id, e.id, e.url, e.is_disabled, e.disabled_because, e.disabled_at
from boathook.endpoint e
join boathook.application a on a.id = e.application_id
left join boathook.endpoint_health h on h.endpoint_id = e.id
where a.organization = $1 and e.deleted_at is null and a.deleted_at is null and not a.is_operational
    and (e.is_disabled or h.failures > 0 or h.open_until is not null)
order by coalesce(e.disabled_at, h.last_failed_at) desc nulls last, e.id
limit $2

-- name: count_results
-- Counts the latest $4 attempts of endpoints $1, which are recipients $2, since id $3, and says whether the newest failed;
-- if it did not, only the newest is counted.
select u.id, coalesce(n.is_failed, false) as is_newest_failed,
    count(l.is_failed) filter (where not l.is_failed) as succeeded, count(l.is_failed) filter (where l.is_failed) as failed
from unnest($1::uuid[], $2::text[]) as u (id, recipient)
left join lateral (
    select a.outcome <> 'succeeded' as is_failed from boathook.attempt a
    where a.recipient = u.recipient and a.id is not null and a.id >= $3
    order by a.id desc
    limit 1
) as n on true
left join lateral (
    select a.outcome <> 'succeeded' as is_failed from boathook.attempt a
    where a.recipient = u.recipient and a.id is not null and a.id >= $3
    order by a.id desc
    limit case when n.is_failed then $4::integer else 1 end
) as l on true
group by u.id, n.is_failed

-- name: list_health
-- Returns the health of these endpoints, without those that never failed.
select endpoint_id, failures, failing_since, last_failed_at, open_until
from boathook.endpoint_health where endpoint_id = any ($1::uuid[])

-- name: find_disabler
-- Returns who last disabled an endpoint.
select actor from boathook.audit where subject = $1 and action = 'endpoint.disabled' order by id desc limit 1

-- name: list_secrets
-- Returns the validity of an endpoint's secrets: the current one first, then old ones that still sign.
select created_at, expires_at from boathook.endpoint_secret
where endpoint_id = $1 and (expires_at is null or expires_at > now())
order by expires_at is not null, id desc

-- name: measure_attempts
-- Counts an endpoint's attempts since an id by result and returns their durations: in time buckets of $4, by the bucket
-- of $5 (upper bounds in ms) that their duration falls into, and in total; reads at most $3 attempts, the latest.
select stretch, latency, grouping(stretch, latency) as grouped,
    count(*) filter (where is_success) as succeeded, count(*) filter (where not is_success) as failed,
    percentile_disc(array[0.5, 0.95, 0.99]) within group (order by duration_ms) as durations, min(started_at) as earliest
from (
    select date_bin($4, a.started_at, timestamptz '2000-01-03 00:00:00+00') as stretch,
        -- A bound belongs to its bucket, as in the histograms of metrics; durations are whole milliseconds.
        width_bucket(coalesce(a.duration_ms, 0) - 0.5::float8, $5::float8[]) as latency,
        a.started_at, a.outcome = 'succeeded' as is_success, a.duration_ms
    from boathook.attempt a
    where a.recipient = $1 and a.id is not null and a.id >= $2
    order by a.id desc
    limit $3
) as l
group by grouping sets ((stretch), (latency), ())

-- name: look_at_attempts
-- Scans an endpoint's next $3 attempts before an id and returns those that match, latest first; each row also has the
-- number of scanned attempts and the last one.
with looked as materialized (
    select a.id, a.event_id, a.status, a.duration_ms, a.outcome, a.error, a.code, a.is_manual, a.number
    from boathook.attempt a
    where a.recipient = $1 and a.id is not null and a.id < $2
    order by a.id desc
    limit $3
)
select s.number as looked, s.last, f.*
from (select count(*) as number, (select id from looked order by id limit 1) as last from looked) as s
left join lateral (
    select l.*, e.type from looked l
    join boathook.event e on e.id = l.event_id
    where ($4::boolean is null or (l.outcome = 'succeeded') = $4)
        and ($5::integer is null or (case when $5 = 0 then coalesce(l.status, 0) = 0 else l.status between $5 and $5 + 99 end))
        and ($6::text is null or e.type like $6)
    order by l.id desc
    limit $7
) as f on true
order by f.id desc

-- name: look_at_messages
-- Scans an application's next $3 messages before an id and returns those that match, latest first, as above; with the
-- number of deliveries of each by state.
with looked as materialized (
    select e.id, e.type, e.dedup_key, e.channels, e.tags, e.deliver_at
    from boathook.event e
    where e.application = $1 and e.id < $2
    order by e.id desc
    limit $3
)
select s.number as looked, s.last, f.*, d.succeeded, d.waiting, d.dead
from (select count(*) as number, (select id from looked order by id limit 1) as last from looked) as s
left join lateral (
    select l.* from looked l
    where ($4::text is null or l.type like $4) and ($5::text is null or $5 = any (l.channels))
    order by l.id desc
    limit $6
) as f on true
left join lateral (
    select
        (select count(*) from boathook.delivery_archive o where o.event_id = f.id) as succeeded,
        (select count(*) from boathook.delivery w where w.event_id = f.id and w.state <> 'dead') as waiting,
        (select count(*) from boathook.delivery w where w.event_id = f.id and w.state = 'dead') as dead
) as d on true
order by f.id desc

-- name: find_request
-- Returns the stored data of one attempt except its response.
select number, code, started_at, request_headers, worker from boathook.attempt where event_id = $1 and id = $2
