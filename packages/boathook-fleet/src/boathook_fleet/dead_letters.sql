-- name: take_in
-- Plans the replays of dead letters, and returns those that no further replay is planned for, each once.
with dead as (
    insert into fleet.dead_retry as kept (delivery_id, recipient, next_at, given_up_at)
    select id, recipient, now() + make_interval(secs => ($3::float8[])[1]),
        case when cardinality($3::float8[]) = 0 then now() end
    from unnest($1::text[], $2::text[]) as dead (id, recipient)
    on conflict (delivery_id) do update set
        last_seen_at = now(),
        next_at = case
            when kept.next_at is null and kept.given_up_at is null
            then now() + make_interval(secs => ($3::float8[])[kept.replays + 1])
            else kept.next_at
        end,
        given_up_at = case
            when kept.next_at is null and kept.replays >= cardinality($3::float8[])
            then coalesce(kept.given_up_at, now())
            else kept.given_up_at
        end
    returning delivery_id, given_up_at
)
select delivery_id from dead where given_up_at = now()

-- name: take_due
update fleet.dead_retry set replays = replays + 1, next_at = null where next_at <= now() returning delivery_id

-- name: read_plan
select replays as replays_by_itself, next_at as next_replay_at, given_up_at from fleet.dead_retry
where delivery_id = $1
