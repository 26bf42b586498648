-- name: find_changed
select id from billing.subscriptions
where not is_planned or (wake_at is null and next_step_at <= now() + $1::interval)
order by next_step_at nulls first limit 500 for update skip locked;

-- name: lock
select subscription.*, users.email, coalesce(users.owner_uuid::text, users.owner_id::text) as owner_id, now() as now
from billing.subscriptions as subscription join billing.users on users.id = subscription.user_id
where subscription.id = $1 for update of subscription;

-- name: lock_of_user
select subscription.*, users.email, coalesce(users.owner_uuid::text, users.owner_id::text) as owner_id, now() as now
from billing.subscriptions as subscription join billing.users on users.id = subscription.user_id
where subscription.user_id = $1 for update of subscription;

-- name: plan
update billing.subscriptions set is_planned = true, access_until = $2, next_step_at = $3, wake_at = $4 where id = $1;

-- name: remind
update billing.subscriptions set done_until = $2 where id = $1;

-- name: end
update billing.subscriptions set status = 'INACTIVE', done_until = $2, updated_at = now() where id = $1;

-- name: forget_plans
with changed as (
    insert into billing.settings_in_force as known (name, value) values ('dunning', $1)
    on conflict (name) do update set value = excluded.value where known.value <> excluded.value returning name
)
update billing.subscriptions set is_planned = false, wake_at = null
where status <> 'INACTIVE' and exists (select from changed);

-- name: find_period
select subscription.*, users.email, coalesce(users.owner_uuid::text, users.owner_id::text) as owner_id
from billing.users left join billing.subscriptions as subscription on subscription.user_id = users.id
where users.id = $1 or lower(users.email) = lower($2) order by users.id = $1 desc nulls last limit 1;
