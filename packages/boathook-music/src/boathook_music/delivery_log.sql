-- name: list_callbacks
select event_id, delivery_id, task_id, stage, code, message, state as result, note
from music.callback where event_id = any($1) order by task_id;

-- name: forget_callbacks
with gone as (
    delete from music.callback where received_at < now() - $1 * interval '1 day' returning 1
) select count(*) from gone;
