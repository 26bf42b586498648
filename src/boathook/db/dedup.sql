-- name: forget_expired
-- Deletes expired keys in key order, so that two gateways cannot deadlock.
delete from boathook.dedup
where key in (select key from boathook.dedup where key = any ($1::uuid[]) and expires_at < now() order by key for update)
