-- name: add_user
insert into billing.users (email) values ($1) on conflict (lower(email)) do nothing returning id;

-- name: find_user
select id, email from billing.users where lower(email) = lower($1);

-- name: waiting_for
select id from billing.payments
where problem in ('USER_MISSING', 'UNLINKED_PAYMENT') and lower(email) = lower($1)
order by id;

-- name: find_payments
select id, provider, external_payment_id, status, problem, user_id, amount,
    subscription_applied_at is not null as is_applied
from billing.payments
where case when $2::bigint is null
    then external_payment_id = $1 or id::text = $1 or provider || '/' || external_payment_id = $1
    else id = $2 end
order by id for update;

-- name: add_note
insert into billing.payment_notes (payment_id, author, action, text) values ($1, $2, $3, $4);

-- name: see_payment
select payment.*, coalesce(users.email, payment.email) as email
from billing.payments as payment left join billing.users on users.id = payment.user_id where payment.id = $1;

-- name: see_subscription
select * from billing.subscriptions where user_id = $1;

-- name: see_events
select report.event_id, boathook.show_id('evt', report.event_id) as shown_id, report.status, report.status_before,
    report.accepted_at, event.source, event.application
from billing.payment_events as report left join boathook.event as event on event.id = report.event_id
where report.payment_id = $1 order by report.accepted_at, report.event_id;

-- name: see_deliveries
select event_id, recipient, state, code, error, attempts from boathook.delivery where event_id = any($1::uuid[])
union all
select event_id, recipient, state, note, null, attempts from boathook.delivery_archive
where event_id = any($1::uuid[])
order by recipient;

-- name: see_receipts
select * from billing.receipts where payment_id = $1 order by id;

-- name: see_notes
select * from billing.payment_notes where payment_id = $1 order by id;

-- name: search
select payment.id, payment.provider, payment.external_payment_id, payment.status, payment.problem,
    coalesce(users.email, payment.email) as email, payment.amount, payment.currency, payment.created_at
from billing.payments as payment left join billing.users on users.id = payment.user_id
where ($1 = '' or payment.external_payment_id = $1 or payment.id::text = $1 or lower(payment.email) = lower($1)
        or payment.user_id = (select id from billing.users where lower(email) = lower($1)))
    and (not $2::boolean or payment.problem in ('USER_MISSING', 'UNLINKED_PAYMENT'))
order by payment.id desc limit $3;

-- name: link
update billing.payments set user_id = $2, email = $3, wakes = 0, woken_at = null, updated_at = now() where id = $1;

-- name: cancel
update billing.subscriptions set status = 'CANCELED', updated_at = now()
where user_id = $1 and status = 'ACTIVE' and coalesce(access_until, current_period_end) > now()
returning current_period_end;

-- name: list_users
select id, email, created_at from billing.users order by id;

-- name: list_subscriptions
select users.email, coalesce(subscription.status, 'INACTIVE') as status, subscription.current_period_end,
    subscription.access_until,
    (select count(*) from billing.payments as payment
     where payment.user_id = users.id and payment.subscription_applied_at is not null
        and payment.reversed_at is null) as payments_applied
from billing.users left join billing.subscriptions as subscription on subscription.user_id = users.id
order by users.id;

-- name: list_payments
select payment.id, payment.provider, payment.external_payment_id, payment.status, payment.problem,
    coalesce(users.email, payment.email) as email, payment.user_id, payment.plan_id, payment.amount,
    payment.currency, payment.paid_at, payment.is_late, payment.subscription_applied_at, payment.reversed_at,
    payment.created_at
from billing.payments as payment left join billing.users on users.id = payment.user_id
where ($1::text is null or payment.status = $1) and ($2::text is null or payment.problem = $2)
    and (not $3::boolean or payment.problem in ('USER_MISSING', 'UNLINKED_PAYMENT'))
order by payment.id desc limit $4;

-- name: list_receipts
select receipt.id, payment.provider, payment.external_payment_id, receipt.kind, receipt.refund_id, receipt.amount,
    receipt.state, receipt.operation, receipt.error, receipt.external_id, receipt.created_at
from billing.receipts as receipt join billing.payments as payment on payment.id = receipt.payment_id
where $1::text is null or receipt.state = $1 order by receipt.id desc limit $2;

-- name: list_plans
select id, price, currency, days, is_offered from billing.plans order by not is_offered, id;
