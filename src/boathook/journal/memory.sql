-- name: forget_expired
-- Frees keys whose memory has run out, in their order, so that two gateways cannot wait for each other in a circle.
delete from boathook.dedup
where key in (select key from boathook.dedup where key = any ($1::uuid[]) and expires_at < now() order by key for update)

-- name: unblock_order_keys
-- Closes the race between a delivery inserted as blocked and the one before it ending at the same moment.
select boathook.unblock(recipient, order_key)
from (select distinct * from unnest($1::text[], $2::text[]) as u (recipient, order_key)) as u
