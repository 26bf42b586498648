-- name: announce_due
-- Notifies all workers and senders of due deliveries, by one notification for each payload.
select pg_notify('boathook_due', payload) from unnest($1::text[]) as payload
