-- name: forget_expired
-- Frees keys whose memory has run out, in their order, so that two gateways cannot wait for each other in a circle.
delete from boathook.dedup
where key in (select key from boathook.dedup where key = any ($1::uuid[]) and expires_at < now() order by key for update)
