-- name: take_turn
-- Makes this session the only one to do what is called so, if none is doing it.
select pg_try_advisory_lock(hashtextextended('boathook.turn:' || $1, 0))
