-- name: insert_operator
-- Stores somebody who may sign in.
insert into boathook.operator (id, name, role, password_hash, subject) values ($1, $2, $3, $4, $5) returning *

-- name: find_operator
-- Returns who has this name, in whatever case it is written.
select * from boathook.operator where lower(name) = lower($1)

-- name: find_operator_by_subject
-- Returns whom an identity provider calls so; locked, so that whoever keeps them out meanwhile ends this session too.
select * from boathook.operator where subject = $1 for update

-- name: lock_operator
-- Returns one as nobody else can change them until the transaction ends.
select * from boathook.operator where id = $1 for update

-- name: list_operators
-- Returns all, in the order of their names.
select o.*, (select count(*) from boathook.operator_session s where s.operator_id = o.id and s.expires_at > now()) as sessions
from boathook.operator o order by lower(o.name)

-- name: update_operator
-- Changes what is given; the rest stays.
update boathook.operator set
    role = coalesce($2, role),
    password_hash = coalesce($3, password_hash),
    disabled_at = case when $4::boolean is null then disabled_at when $4 then coalesce(disabled_at, now()) end
where id = $1
returning *

-- name: bind_operator
-- Notes whom the identity provider calls so.
update boathook.operator set subject = $2 where id = $1 returning *

-- name: lock_admins
-- Lists those who may do everything, so that of two who take the role from each other one waits for the other.
select id from boathook.operator where role = 'admin' and disabled_at is null order by id for update

-- name: delete_operator
-- Removes somebody with all sessions.
delete from boathook.operator where id = $1 returning id

-- name: insert_session
-- Stores a browser in which somebody has signed in, and lets go of what has ended.
with gone as (delete from boathook.operator_session where expires_at < now()),
seen as (update boathook.operator set signed_in_at = now() where id = $2)
insert into boathook.operator_session (token_sha256, operator_id, expires_at, client_address, user_agent)
values ($1, $2, now() + $3::interval, $4, $5)

-- name: find_session
-- Returns who has signed in with this token, if they still may, and whether it is time to note that they are there.
select o.*, s.seen_at < now() - interval '1 minute' as is_stale
from boathook.operator_session s join boathook.operator o on o.id = s.operator_id
where s.token_sha256 = $1 and s.expires_at > now() and s.seen_at > now() - $2::interval and o.disabled_at is null

-- name: touch_session
-- Notes that somebody is there.
update boathook.operator_session set seen_at = now() where token_sha256 = $1

-- name: end_session
-- Signs one browser out.
delete from boathook.operator_session where token_sha256 = $1

-- name: end_sessions
-- Signs somebody out everywhere but, perhaps, in one browser.
delete from boathook.operator_session where operator_id = $1 and ($2::bytea is null or token_sha256 <> $2)
