-- name: list_publishing_keys
-- Lists the newest valid keys of organizations.
select token_sha256, id, organization, expires_at
from boathook.api_key
where application_id is null and revoked_at is null and not is_portal and capabilities is null and mount is null
    and (expires_at is null or expires_at > now())
order by id desc
limit $1

-- name: read_targets_version
-- Returns the number of the newest applications, and the sum of the times of their changes in microseconds. The sum
-- changes whichever of two transactions commits first, unlike the latest time.
select count(*) as number, coalesce(sum((extract(epoch from updated_at) * 1000000)::bigint), 0)::text as changes
from (
    select updated_at from boathook.application
    where deleted_at is null and not is_operational
    order by id desc
    limit $1
) as newest

-- name: list_targets
-- Lists the applications before an id, newest first, with the times of their changes in microseconds.
select id, organization, uid, home, imported_id, (extract(epoch from updated_at) * 1000000)::bigint as changed_us
from boathook.application
where deleted_at is null and not is_operational and id < $1
order by id desc
limit $2

-- name: list_changed_targets
-- Lists the applications that have changed since a time in microseconds, deleted ones included.
select id, organization, uid, home, imported_id, (extract(epoch from updated_at) * 1000000)::bigint as changed_us,
    deleted_at is not null as is_deleted
from boathook.application
where updated_at >= to_timestamp($1::bigint / 1000000.0) and not is_operational
limit $2

-- name: find_by_idempotency_key
-- Finds the message that was published with an idempotency key, by the key's hash.
select event_id as id, request_sha256 from boathook.dedup
where replay_key = $1 and request_sha256 is not null and expires_at > now()
