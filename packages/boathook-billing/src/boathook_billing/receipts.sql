-- name: see_history
select exists (select from billing.payment_events where payment_id = $1 and status = 'SUCCEEDED') as is_reported,
    (select request -> 'attributes' from billing.receipts where payment_id = $1 order by id limit 1) as customer,
    exists (select from billing.receipts where payment_id = $1 and kind = 'refund') as is_refunded,
    (select uid from billing.payments where id = $1) as uid;

-- name: add
insert into billing.receipts (payment_id, kind, refund_id, external_id, amount, request)
values ($1, $2, $3, $4, $5, $6::text::jsonb) on conflict (payment_id, kind, refund_id) do nothing returning id;

-- name: count_failed
select count(*)::int from billing.receipts where state = 'FAILED';

-- name: oldest_pending_s
select coalesce(extract(epoch from now() - min(created_at)), 0)::float8 from billing.receipts where state = 'PENDING';

-- name: see
select id, external_id, state, request::text as request from billing.receipts where id = $1;

-- name: end
update billing.receipts set state = $2, operation = $3, error = $4, updated_at = now()
where id = $1 and external_id = $5;

-- name: reissue
update billing.receipts set state = 'PENDING', operation = null, error = null, issues = issues + 1,
    updated_at = now(),
    external_id = split_part(external_id, '#', 1) || '#' || (issues + 1),
    request = jsonb_set(request, '{externalId}', to_jsonb(split_part(external_id, '#', 1) || '#' || (issues + 1)))
where id = $1 and state = 'FAILED' returning id, external_id, payment_id, kind;
