-- name: insert_operator
-- Stores an operator unless the name or the subject is in use.
insert into boathook.operator (id, name, role, password_hash, subject) values ($1, $2, $3, $4, $5)
on conflict do nothing
returning *

-- name: find_operator
-- Returns the operator with this name, ignoring case.
select * from boathook.operator where lower(name) = lower($1)

-- name: find_operator_by_subject
-- Returns the operator with this subject; locked, so that disabling the operator meanwhile also ends the new session.
select * from boathook.operator where subject = $1 for update

-- name: lock_operator
-- Returns an operator, locked against changes until the transaction ends.
select * from boathook.operator where id = $1 for update

-- name: list_operators
-- Returns all operators, ordered by name.
select o.*, (select count(*) from boathook.operator_session s where s.operator_id = o.id and s.expires_at > now()) as sessions
from boathook.operator o order by lower(o.name)

-- name: update_operator
-- Changes the given fields.
update boathook.operator set
    role = coalesce($2, role),
    password_hash = coalesce($3, password_hash),
    disabled_at = case when $4::boolean is null then disabled_at when $4 then coalesce(disabled_at, now()) end
where id = $1
returning *

-- name: bind_operator
-- Stores an operator's subject at the identity provider.
update boathook.operator set subject = $2 where id = $1 returning *

-- name: lock_admins
-- Locks the enabled admins, so that two who revoke each other's role do so one after the other.
select id from boathook.operator where role = 'admin' and disabled_at is null order by id for update

-- name: delete_operator
-- Deletes an operator with all sessions.
delete from boathook.operator where id = $1 returning id

-- name: insert_session
-- Stores a new session of an operator, and deletes expired sessions.
with gone as (delete from boathook.operator_session where expires_at < now()),
seen as (update boathook.operator set signed_in_at = now() where id = $2)
insert into boathook.operator_session (token_sha256, operator_id, expires_at, client_address, user_agent)
values ($1, $2, now() + $3::interval, $4, $5)

-- name: find_session
-- Returns the operator of this token's valid session, and whether its last activity should be updated.
select o.*, s.seen_at < now() - interval '1 minute' as is_stale
from boathook.operator_session s join boathook.operator o on o.id = s.operator_id
where s.token_sha256 = $1 and s.expires_at > now() and s.seen_at > now() - $2::interval and o.disabled_at is null

-- name: touch_session
-- Updates the time of a session's last activity.
update boathook.operator_session set seen_at = now() where token_sha256 = $1

-- name: end_session
-- Ends one session.
delete from boathook.operator_session where token_sha256 = $1

-- name: end_sessions
-- Ends all sessions of an operator, optionally except one.
delete from boathook.operator_session where operator_id = $1 and ($2::bytea is null or token_sha256 <> $2)

-- name: list_views
-- Lists the views of an operator, ordered by name.
select name, query from boathook.saved_view where operator_id = $1 order by lower(name), name

-- name: save_view
-- Stores a view, or replaces the one with its name, unless the operator has $4 others.
insert into boathook.saved_view (operator_id, name, query)
select $1, $2, $3
where (select count(*) from boathook.saved_view where operator_id = $1 and name <> $2) < $4
on conflict (operator_id, name) do update set query = excluded.query
returning name

-- name: delete_view
-- Deletes a view of an operator.
delete from boathook.saved_view where operator_id = $1 and name = $2 returning name
