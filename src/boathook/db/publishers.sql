-- name: list_publishing_keys
-- Lists the newest valid keys of organizations.
select token_sha256, id, organization, expires_at
from boathook.api_key
where application_id is null and revoked_at is null and not is_portal and capabilities is null
    and (expires_at is null or expires_at > now())
order by id desc
limit $1

-- name: read_targets_version
-- Returns a text that differs after any change of the applications' ids and uids. The sum changes whichever of two
-- transactions commits first, unlike the latest time.
select count(*) || ' ' || coalesce(sum(extract(epoch from updated_at)), 0)
from boathook.application
where deleted_at is null and not is_operational

-- name: list_targets
-- Lists the newest applications.
select id, organization, uid, cell
from boathook.application
where deleted_at is null and not is_operational
order by id desc
limit $1
