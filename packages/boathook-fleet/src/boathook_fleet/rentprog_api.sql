-- The rates of RentProg's API, which all workers share: for each kind of request the time of the next one.

-- name: take_turn
-- Takes the next turn and returns the seconds until then; no row if it is more than $3 seconds ahead. Turns are $2
-- seconds apart.
insert into fleet.api_rate as kept (kind, free_at) values ($1, clock_timestamp() + make_interval(secs => $2))
on conflict (kind) do update
    set free_at = greatest(kept.free_at, clock_timestamp()) + make_interval(secs => $2)
    where kept.free_at <= clock_timestamp() + make_interval(secs => $3)
returning greatest(0, extract(epoch from free_at - clock_timestamp()) - $2)::float8

-- name: next_turn
-- Returns the seconds until the next turn.
select extract(epoch from free_at - clock_timestamp())::float8 from fleet.api_rate where kind = $1

-- name: pause
-- Gives no turn for $2 seconds.
update fleet.api_rate set free_at = greatest(free_at, clock_timestamp() + make_interval(secs => $2)) where kind = $1
