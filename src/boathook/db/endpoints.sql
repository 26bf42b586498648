-- name: insert_endpoint
-- Stores an endpoint, unless its uid is in use.
insert into boathook.endpoint ({columns}) values ({parameters})
on conflict do nothing
returning *

-- name: measure_endpoints
-- Returns the number of an application's endpoints, and the bytes of their event types, channels and filters.
select count(*) as number,
    coalesce(sum(octet_length(concat(event_types::text, channels::text, filter::text))), 0)::bigint as bytes
from boathook.endpoint
where application_id = $1 and deleted_at is null

-- name: find_endpoint
-- Returns an application's endpoint by its id, uid or imported id.
select * from boathook.endpoint
where application_id = $1 and deleted_at is null and (id = $2 or uid = $3 or imported_id = $3)
order by (id = $2) is true desc
limit 1

-- name: lock_endpoint
-- Returns an application's endpoint by its id, uid or imported id, locked against changes until the transaction ends.
select * from boathook.endpoint
where application_id = $1 and deleted_at is null and (id = $2 or uid = $3 or imported_id = $3)
order by (id = $2) is true desc
limit 1
for no key update

-- name: save_endpoint
-- Stores an endpoint's changed fields as its next revision.
update boathook.endpoint
set ({columns}) = ({parameters}), revision = revision + 1, updated_at = now()
where id = $1 and application_id = $2
returning *

-- name: set_imported_id
-- Stores an endpoint's id on the server that it was imported from; senders need not reload it.
update boathook.endpoint set imported_id = $2, updated_at = now() where id = $1

-- name: list_endpoints
-- Returns an application's endpoints after an id, oldest first, or before it, newest first.
select * from boathook.endpoint
where application_id = $1 and deleted_at is null and id {beyond} $2
order by id {direction}
limit $3

-- name: delete_endpoint
-- Marks an endpoint as deleted, which frees its uid.
update boathook.endpoint
set deleted_at = now(), updated_at = now(), revision = revision + 1
where application_id = $1 and id = $2 and deleted_at is null

-- name: disable_endpoint
-- Disables an enabled endpoint and makes all publishers reload it; returns it with its owner.
with changed as (
    update boathook.endpoint e
    set is_disabled = true, disabled_because = $2, disabled_at = $3, revision = e.revision + 1, updated_at = now()
    where e.id = $1 and not e.is_disabled and e.deleted_at is null
    returning e.id, e.uid, e.application_id
)
update boathook.application a
set routes_version = a.routes_version + 1
from changed c
where a.id = c.application_id
returning a.organization, a.id as application_id, a.uid as application_uid, a.is_operational,
    c.id as endpoint_id, c.uid as endpoint_uid

-- name: forget_failures
-- Resets an endpoint's failures and pauses.
delete from boathook.endpoint_health where endpoint_id = $1

-- name: allow_probes
-- Lets paused endpoints be probed at once.
with held as materialized (
    select endpoint_id from boathook.endpoint_health
    where endpoint_id in (select boathook.endpoint_of(r) from unnest($1::text[]) as u (r)) and open_until is not null
    order by endpoint_id
    for update
)
update boathook.endpoint_health h set open_until = least(h.open_until, clock_timestamp())
from held where h.endpoint_id = held.endpoint_id

-- name: put_first
-- Makes a pending delivery to a paused endpoint the next one, which is its probe.
update boathook.delivery d
set due_at = least(d.due_at, (
    select min(o.due_at) - interval '1 ms' from boathook.delivery o
    where o.recipient = d.recipient and o.state = 'pending' and not o.is_blocked))
where d.event_id = $1 and d.ordinal = $2 and d.state = 'pending' and not d.is_blocked
    and (
        select h.open_until from boathook.endpoint_health h where h.endpoint_id = boathook.endpoint_of(d.recipient)
    ) is not null

-- name: cancel_backlog
-- Dead-letters the pending deliveries of a recipient with the code CANCELED.
with held as materialized (
    select event_id, ordinal from boathook.delivery
    where recipient = $1 and state = 'pending'
    order by event_id, ordinal
    for update skip locked
)
update boathook.delivery d
set state = 'dead', is_blocked = false, code = 'CANCELED', error = $2, dead_at = now()
where d.event_id = any (array(select event_id from held))
    and ((d.event_id, d.ordinal) in (select event_id, ordinal from held)) is true

-- name: insert_secret
-- Stores an endpoint's current secret.
insert into boathook.endpoint_secret (endpoint_id, encrypted) values ($1, $2)

-- name: retire_secret
-- Lets an endpoint's current secret expire after a grace period.
update boathook.endpoint_secret set expires_at = now() + $2::interval where endpoint_id = $1 and expires_at is null

-- name: find_secret
-- Returns an endpoint's current secret, encrypted.
select encrypted from boathook.endpoint_secret where endpoint_id = $1 and expires_at is null

-- name: count_old_secrets
-- Counts the former secrets of an endpoint that still sign, and returns when the first of them expires.
select count(*) as number, min(expires_at) as next_end from boathook.endpoint_secret
where endpoint_id = $1 and expires_at > now()

-- name: delete_old_secrets
-- Deletes the former secrets of an endpoint that no longer sign.
delete from boathook.endpoint_secret where endpoint_id = $1 and expires_at <= now()
