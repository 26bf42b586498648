-- name: insert_key
-- Stores a key by the hash of its token.
insert into boathook.api_key (id, token_sha256, organization, application_id, name, is_portal, session_id,
    capabilities, feature_flags, mount, mount_role, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, now() + $12::interval)
returning *

-- name: find_key
-- Returns the valid key with this hash; keys of deleted applications are not valid.
select k.* from boathook.api_key k
left join boathook.application a on a.id = k.application_id
where k.token_sha256 = $1 and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
    and (k.application_id is null or (a.deleted_at is null and a.organization = k.organization))

-- name: list_keys
-- Returns the keys before $3, newest first; portal keys only on request.
select * from boathook.api_key
where ($1::text is null or organization = $1) and ($2 or not is_portal) and ($3::uuid is null or id < $3)
order by id desc
limit $4

-- name: get_key
-- Returns one key, of organization $2 unless that is null.
select * from boathook.api_key where id = $1 and ($2::text is null or organization = $2)

-- name: list_portal
-- Returns the latest valid portal keys of an organization.
select * from (select * from boathook.api_key order by id desc limit 10000) as latest
where organization = $1 and is_portal and revoked_at is null and (expires_at is null or expires_at > now())
order by id desc
limit $2

-- name: revoke_key
-- Revokes a key, of organization $2 unless that is null.
update boathook.api_key set revoked_at = now()
where id = $1 and revoked_at is null and ($2::text is null or organization = $2)
returning *

-- name: expire_keys
-- Lets the keys of an application, or of some of its sessions, expire after a delay.
update boathook.api_key set expires_at = least(expires_at, now() + $3::interval)
where application_id = $1 and ($2::text[] is null or session_id = any ($2)) and revoked_at is null
    and (expires_at is null or expires_at > now())
