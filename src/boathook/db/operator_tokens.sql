-- name: insert_token
-- Stores a token by its hash, unless its operator has $7 valid ones; deletes tokens that ended 90 days ago.
with gone as (delete from boathook.operator_token where expires_at < now() - interval '90 days'),
stored as (
    insert into boathook.operator_token (id, token_sha256, operator_id, name, role, expires_at)
    select $1, $2, $3, $4, $5, now() + make_interval(secs => $6)
    where (
        select count(*) from boathook.operator_token
        where operator_id = $3 and revoked_at is null and expires_at > now()
    ) < $7
    returning *
)
select s.*, o.name as operator from stored s join boathook.operator o on o.id = s.operator_id

-- name: find_token
-- Returns the valid token with this hash and its operator; a disabled operator's is not valid.
select t.id, t.role, o.id as operator_id, o.name as operator, o.role as operator_role,
    coalesce(t.used_at < now() - interval '1 minute', true) as is_stale
from boathook.operator_token t join boathook.operator o on o.id = t.operator_id
where t.token_sha256 = $1 and t.revoked_at is null and t.expires_at > now() and o.disabled_at is null

-- name: touch_token
-- Updates the time of a token's last use; concurrent requests do not wait for one another.
update boathook.operator_token set used_at = now()
where id = (select id from boathook.operator_token where id = $1 for update skip locked)

-- name: list_tokens
-- Returns the tokens of all operators or of one, newest first.
select t.*, o.name as operator
from boathook.operator_token t join boathook.operator o on o.id = t.operator_id
where ($1::uuid is null or t.operator_id = $1) and ($2::uuid is null or t.id < $2)
order by t.id desc
limit $3

-- name: revoke_token
-- Revokes a valid token, of any operator or of one.
update boathook.operator_token set revoked_at = now()
where id = $1 and ($2::uuid is null or operator_id = $2) and revoked_at is null and expires_at > now()
returning id

-- name: revoke_tokens
-- Revokes all tokens of an operator.
update boathook.operator_token set revoked_at = now()
where operator_id = $1 and revoked_at is null and expires_at > now()
