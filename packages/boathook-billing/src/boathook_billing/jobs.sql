-- name: wake_known
with due as (
    select payment.id from billing.payments as payment
    where payment.problem in ('USER_MISSING', 'UNLINKED_PAYMENT')
        and (payment.user_id is not null
            or exists (select from billing.users where lower(users.email) = lower(payment.email)))
        and payment.wakes < 20
        and (payment.woken_at is null
            or payment.woken_at + least(power(2, payment.wakes), 3600) * interval '1 second' <= now())
    order by payment.woken_at nulls first limit 500
    for update skip locked
)
update billing.payments as payment set wakes = wakes + 1, woken_at = now()
from due where payment.id = due.id
returning payment.id;

-- name: count_statuses
select status, count(*) as n from billing.payments group by status;

-- name: count_problems
select problem, count(*) as n, extract(epoch from now() - min(created_at))::float8 as oldest_s
from billing.payments where problem is not null group by problem;

-- name: count_receipts
select state, count(*) as n, extract(epoch from now() - min(created_at))::float8 as oldest_s
from billing.receipts group by state;

-- name: put_plan
insert into billing.plans as known (id, price, currency, days) values ($1, $2, $3, $4)
on conflict (id) do update set price = excluded.price, currency = excluded.currency, days = excluded.days,
    is_offered = true, updated_at = now()
where (known.price, known.currency, known.days, known.is_offered)
    is distinct from (excluded.price, excluded.currency, excluded.days, true);

-- name: retire_plans
update billing.plans set is_offered = false, updated_at = now() where is_offered and id <> all($1::text[]);
