-- The tables of the system before this one, for queries that know their names.

create view {schema}.subscriptions as
select s.uid as id, u.{owner} as user_id, s.status, s.current_period_end, s.created_at, s.updated_at
from billing.subscriptions as s join billing.users as u on u.id = s.user_id;

-- In two parts, so that a condition on user_id uses the index on it.
create view {schema}.payments as
select p.uid as id, p.provider, p.external_payment_id, u.{owner} as user_id, p.email, p.amount, p.currency, p.status,
    p.paid_at, p.subscription_applied_at,
    (select s.uid from billing.subscriptions as s where s.id = p.subscription_id) as subscription_id, p.created_at
from billing.payments as p join billing.users as u on u.id = p.user_id
union all
select p.uid, p.provider, p.external_payment_id, null, p.email, p.amount, p.currency, p.status, p.paid_at, null, null,
    p.created_at
from billing.payments as p where p.user_id is null;

create view {schema}.webhook_events as
select known.id, known.provider, known.external_event_id, known.external_payment_id, known.payload, known.payload_hash,
    known.signature_valid, coalesce(result.status, known.status) as status, known.received_at,
    case when result.status is null then known.processed_at else result.processed_at end as processed_at,
    case when result.status is null then known.error_code else result.error_code end as error_code,
    case when result.status is null then known.error_message else result.error_message end as error_message
from (
    select event.id, event.id as event_id, coalesce(payment.provider, {provider}) as provider,
        billing.body_json(event.body) ->> 'event_id' as external_event_id,
        coalesce(payment.external_payment_id, billing.body_json(event.body) ->> 'external_payment_id')
            as external_payment_id,
        billing.body_json(event.body) as payload, encode(event.body_sha256, 'hex') as payload_hash,
        true as signature_valid, 'VALIDATED' as status, event.accepted_at as received_at,
        null::timestamptz as processed_at, null as error_code, null as error_message
    from boathook.event as event
    left join billing.payment_events as report on report.event_id = event.id
    left join billing.payments as payment on payment.id = report.payment_id
    where event.source = 'payments' or event.application = 'billing-yookassa'
    union all
    select id, event_id, provider, external_event_id, external_payment_id, payload, payload_hash, signature_valid,
        status, received_at, processed_at, error_code, error_message
    from billing.imported_events
) as known
left join lateral (
    select ordinal, case when state = 'dead' then 'FAILED_FINAL' when code is not null then 'FAILED_RETRYABLE' else 'VALIDATED' end
            as status,
        code as error_code, error as error_message,
        coalesce(dead_at, (
            select max(ended_at) from boathook.attempt
            where attempt.event_id = delivery.event_id and attempt.ordinal = delivery.ordinal
        )) as processed_at
    from boathook.delivery where delivery.event_id = known.event_id and recipient = 'handler:billing.apply'
    union all
    select ordinal, case when state = 'succeeded' or note = 'ALREADY_APPLIED' then 'PROCESSED' else 'IGNORED' end,
        case when state = 'ignored' and note <> 'ALREADY_APPLIED' then note end, null, ended_at
    from boathook.delivery_archive
    where delivery_archive.event_id = known.event_id and recipient = 'handler:billing.apply'
    order by ordinal desc limit 1
) as result on true
-- An empty part: PostgreSQL refuses `for update` of an outer join, but not of a union, where it locks nothing.
union all
select null, null, null, null, null, null, null, null, null, null, null, null where false;

comment on view {schema}.subscriptions is '{mark}';
comment on view {schema}.payments is '{mark}';
comment on view {schema}.webhook_events is '{mark}';
