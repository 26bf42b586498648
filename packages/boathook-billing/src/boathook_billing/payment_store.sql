-- name: add_payment
insert into billing.payments (provider, external_payment_id, status) values ($1, $2, $3)
on conflict (provider, external_payment_id) do nothing returning id;

-- name: lock_payment
select *, subscription_applied_at is not null as is_applied, reversed_at is not null as is_reversed
   from billing.payments
where provider = $1 and external_payment_id = $2 for update;

-- name: lock_known
select *, subscription_applied_at is not null as is_applied, reversed_at is not null as is_reversed
   from billing.payments
where id = $1 for update;

-- name: save_problem
update billing.payments set problem = $2, updated_at = now() where id = $1;

-- name: save_payment
update billing.payments set status = $2, user_id = $3, email = $4, plan_id = $5, amount = $6, currency = $7,
    paid_at = $8, is_late = $9, problem = $10, updated_at = now()
where id = $1;

-- name: add_event
insert into billing.payment_events (event_id, payment_id, status, status_before, accepted_at)
values ($1, $2, $3, $4, $5) on conflict (event_id) do nothing;

-- name: status_before
select status_before from billing.payment_events where event_id = $1;

-- name: find_user
select id from billing.users where lower(email) = lower($1);

-- name: lock_period
select current_period_end from billing.subscriptions where user_id = $1 for update;

-- name: extend
with guard as (
    update billing.payments
    set subscription_applied_at = now(), applied_days = $2, plan_id = $3, problem = null, updated_at = now()
    where id = $1 and subscription_applied_at is null
    returning user_id
)
insert into billing.subscriptions as known (user_id, status, current_period_end, active_since)
select user_id, 'ACTIVE', now() + $2 * interval '24 hours', now() from guard
on conflict (user_id) do update set
    status = 'ACTIVE',
    current_period_end = greatest(known.current_period_end, now()) + $2 * interval '24 hours',
    active_since = case when known.current_period_end > now() then known.active_since else now() end,
    updated_at = now()
returning id, current_period_end, active_since;

-- name: note_subscription
update billing.payments set subscription_id = $2, applied_stretch = $3 where id = $1;

-- name: reverse
with taken as (
    update billing.payments set reversed_at = now(), updated_at = now()
    where id = $1 and subscription_applied_at is not null and reversed_at is null
    returning user_id, applied_days, applied_stretch
), shorter as (
    select taken.user_id, known.current_period_end
        - case when known.active_since = taken.applied_stretch then taken.applied_days else 0 end
        * interval '24 hours' as period_end
    from taken join billing.subscriptions as known on known.user_id = taken.user_id
)
update billing.subscriptions as known
set current_period_end = shorter.period_end, updated_at = now(),
    status = case when shorter.period_end <= now() then 'INACTIVE' else known.status end
from shorter where known.user_id = shorter.user_id
returning known.current_period_end;
