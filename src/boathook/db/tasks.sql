-- name: insert_task
-- Stores a background task.
insert into boathook.task (id, organization, application_id, endpoint_id, kind, request)
values ($1, $2, $3, $4, $5, $6)
returning *

-- name: count_running
-- Returns the number of running tasks of an organization, and of an application.
select count(*) as of_organization, count(*) filter (where application_id = $2) as of_application
from boathook.task where state = 'running' and organization = $1

-- name: find_task
-- Reads one task of an organization.
select * from boathook.task where organization = $1 and id = $2

-- name: list_tasks
-- Reads a page of an organization's tasks; {direction} is asc or desc.
select * from boathook.task
where organization = $1 and id >= $2 and id < $3 and ($4::text is null or state = $4) and kind = any ($5::text[])
order by id {direction}
limit $6

-- name: take_task
-- Locks the running task that has waited longest, skipping those that another process works on, that must wait, or that
-- do not run in steps.
select * from boathook.task
where state = 'running' and kind <> 'store.verify'
    and coalesce((place ->> 'not_before')::timestamptz <= clock_timestamp(), true)
order by updated_at, id
limit 1
for update skip locked

-- name: save_task
-- Advances a task in the transaction of its step.
update boathook.task
set state = $2, place = $3, data = $4, updated_at = clock_timestamp()
where id = $1
returning *

-- name: stop_task
-- Ends a running task as failed and adds to its data, after waiting for the current step.
update boathook.task
set state = 'failed', data = (data::jsonb || $3::jsonb)::json, updated_at = clock_timestamp()
where organization = $1 and id = $2 and state = 'running'
returning *

-- name: is_key_valid
-- Whether an API key is valid.
select exists (
    select from boathook.api_key where id = $1 and revoked_at is null and (expires_at is null or expires_at > now()))

-- name: find_roles
-- Reads the role of an operator who is not disabled, and that of the token $2 of this operator, if one is given: null if it
-- is not valid any more.
select o.role, t.role as token_role
from boathook.operator o
left join boathook.operator_token t
    on t.id = $2 and t.operator_id = o.id and t.revoked_at is null and t.expires_at > now()
where o.id = $1 and o.disabled_at is null

-- name: find_target
-- Reads the endpoint of a task, and its application, unless either is deleted.
select a.organization, p.id, p.event_types, p.channels, p.filter, p.order_by
from boathook.endpoint p
join boathook.application a on a.id = p.application_id
where p.id = $2 and a.id = $1 and p.deleted_at is null and a.deleted_at is null

-- name: page_subscriptions
-- Reads the next applications of an organization with the event types of their active endpoints.
select a.id, coalesce(bool_or(p.event_types is null) filter (where p.id is not null), false) as has_all,
    array_remove(array_agg(distinct t.name order by t.name), null) as types
from (
    select id from boathook.application
    where organization = $1 and deleted_at is null and not is_operational and id > $2
    order by id
    limit $3
) as a
left join boathook.endpoint p on p.application_id = a.id and p.deleted_at is null and not p.is_disabled
left join lateral unnest(p.event_types) as t (name) on true
group by a.id
order by a.id

-- name: page_usage
-- Reads the next applications of an organization, optionally only the named ones, with the number of deliveries that
-- their messages of a window were created with.
select a.id, a.uid, (
    select coalesce(sum(e.fanout), 0)::bigint from boathook.event e
    where e.application = boathook.show_id('app', a.id) and e.id >= $4 and e.id < $5
) as destinations
from boathook.application a
where a.organization = $1 and a.deleted_at is null and not a.is_operational and a.id > $2
    and ($6::uuid[] is null or a.id = any ($6))
order by a.id
limit $3
