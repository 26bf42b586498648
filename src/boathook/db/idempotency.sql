-- name: claim_key
-- Claims an idempotency key for this transaction, waiting for one that holds it; an expired key is taken over.
insert into boathook.idempotency as i (key, request_sha256, expires_at)
values ($1, $2, now() + $3::interval)
on conflict (key) do update set request_sha256 = excluded.request_sha256, status = null, encrypted_response = null,
    expires_at = excluded.expires_at
where i.expires_at < now()
returning true

-- name: find_answer
-- Returns the stored response for an idempotency key.
select request_sha256, status, encrypted_response from boathook.idempotency where key = $1

-- name: save_answer
-- Stores the response for an idempotency key.
update boathook.idempotency set status = $2, encrypted_response = $3 where key = $1
