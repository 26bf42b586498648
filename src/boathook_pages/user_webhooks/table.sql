-- name: insert_webhook
-- Stores a webhook and returns its id.
insert into {schema}.{prefix}webhooks (user_id, url, types, is_active) values ($1, $2, $3, $4) returning id

-- name: find_webhook
-- Returns a webhook of a user.
select * from {schema}.{prefix}webhooks where user_id = $1 and id = $2

-- name: list_webhooks
-- Lists the webhooks of a user, oldest first.
select * from {schema}.{prefix}webhooks where user_id = $1 order by id

-- name: list_all_webhooks
-- Lists the webhooks of all users with the users' names, oldest first.
select w.id, u.id as user_id, u.name, w.url, w.types, w.is_active as active, w.created_at
from {schema}.{prefix}webhooks w join {schema}.{prefix}users u on u.id = w.user_id order by w.id

-- name: count_webhooks
-- Counts the webhooks of a user.
select count(*) from {schema}.{prefix}webhooks where user_id = $1

-- name: update_webhook
-- Changes a webhook of a user.
update {schema}.{prefix}webhooks set url = $3, types = $4, is_active = $5, updated_at = now()
where user_id = $1 and id = $2 returning id

-- name: delete_webhook
-- Deletes a webhook of a user.
delete from {schema}.{prefix}webhooks where user_id = $1 and id = $2 returning id
