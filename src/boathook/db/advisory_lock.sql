-- name: try_lock
-- Takes the lock of a name for this session, unless another session holds it.
select pg_try_advisory_lock(hashtextextended('boathook.turn:' || $1, 0))
