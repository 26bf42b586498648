-- name: announce_due
-- Notifies all workers and senders that deliveries are due.
select pg_notify('boathook_due', $1)
