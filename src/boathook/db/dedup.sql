-- name: forget_expired
-- Deletes keys that have expired by now, or by $2 if that is later, in key order, so that two gateways cannot deadlock.
delete from boathook.dedup
where key in (
    select key from boathook.dedup where key = any ($1::uuid[]) and expires_at <= greatest(now(), $2::timestamptz)
    order by key for update)
