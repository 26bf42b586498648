-- name: insert_user
-- Stores a user of an app, unless another user with a password has the name.
insert into {schema}.{prefix}users (name, password_hash, token_sha256, roles) values ($1, $2, $3, $4)
on conflict do nothing
returning *

-- name: find_user
-- Returns a user by id.
select * from {schema}.{prefix}users where id = $1

-- name: find_user_by_token
-- Returns the enabled user with this token.
select * from {schema}.{prefix}users where token_sha256 = $1 and disabled_at is null

-- name: lock_user_by_token
-- Returns the enabled user with this token; a concurrent renewal of the token waits, and then ends the new session too.
select * from {schema}.{prefix}users where token_sha256 = $1 and disabled_at is null for key share

-- name: find_user_by_name
-- Returns the user who signs in with this name and a password, ignoring case.
select * from {schema}.{prefix}users where lower(name) = lower($1) and password_hash is not null

-- name: search_users
-- Returns the user with an id, or those with a name.
select * from {schema}.{prefix}users where id = $1 or name = $2 order by id = $1 desc nulls last, id limit 20

-- name: list_users
-- Lists all users, oldest first.
select * from {schema}.{prefix}users order by id

-- name: lock_user
-- Returns a user, locked against changes until the transaction ends.
select * from {schema}.{prefix}users where id = $1 for no key update

-- name: set_password
-- Changes a user's password.
update {schema}.{prefix}users set password_hash = $2 where id = $1

-- name: set_token
-- Changes a user's token; the key of the row is locked too, as `lock_user_by_token` expects.
update {schema}.{prefix}users set token_sha256 = $2 where id = $1

-- name: set_roles
-- Changes a user's roles.
update {schema}.{prefix}users set roles = $2 where id = $1

-- name: set_language
-- Changes a user's language.
update {schema}.{prefix}users set language = $2 where id = $1

-- name: set_disabled
-- Disables or enables a user.
update {schema}.{prefix}users set disabled_at = case when $2 then coalesce(disabled_at, now()) end where id = $1

-- name: delete_user
-- Deletes a user with all sessions.
delete from {schema}.{prefix}users where id = $1

-- name: insert_session
-- Stores a new session of a user, and deletes expired sessions.
with gone as (delete from {schema}.{prefix}sessions where expires_at < now()),
seen as (update {schema}.{prefix}users set signed_in_at = now() where id = $2)
insert into {schema}.{prefix}sessions (token_sha256, user_id, expires_at, client_address, user_agent)
values ($1, $2, now() + $3::interval, $4, $5)

-- name: find_session
-- Returns the user of this token's valid session.
select u.* from {schema}.{prefix}sessions s join {schema}.{prefix}users u on u.id = s.user_id
where s.token_sha256 = $1 and s.expires_at > now() and u.disabled_at is null

-- name: end_session
-- Ends one session.
delete from {schema}.{prefix}sessions where token_sha256 = $1

-- name: end_sessions
-- Ends all sessions of a user, optionally except one.
delete from {schema}.{prefix}sessions where user_id = $1 and ($2::bytea is null or token_sha256 <> $2)
