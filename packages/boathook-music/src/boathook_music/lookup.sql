-- name: claim_due
update music.track set asked_at = now(), asks = asks + 1, ask_error = null where task_id = (
    select task_id from music.track
    where expected_since is not null and created_at > now() - $3 * interval '1 hour'
        and coalesce(asked_at, expected_since)
            + least($1 * power(2, least(asks, 30)), $2) * interval '1 second' <= now()
    order by coalesce(asked_at, expected_since), task_id limit 1 for update skip locked
) returning task_id, asks;

-- name: claim_named
update music.track set asked_at = now(), asks = asks + 1, ask_error = null
where task_id = $1 returning task_id, asks;

-- name: mark_ask_failed
update music.track set ask_error = $2 where task_id = $1 and expected_since is not null;
