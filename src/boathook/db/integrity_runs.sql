-- name: begin_run
-- Stores a requested consistency check, unless one is running.
insert into boathook.task (id, organization, kind, request, data)
select $1, $2, $3, $4, '{}'
where not exists (select from boathook.task where kind = $3 and state = 'running')
returning *

-- name: lock_runs
-- Allows one request of a consistency check at a time.
select pg_advisory_xact_lock(hashtextextended('boathook.verify_runs', 0))

-- name: list_runs
-- Reads the latest consistency checks, newest first.
select * from boathook.task where organization = $1 and kind = $2 order by id desc limit $3

-- name: find_run
-- Reads one consistency check.
select * from boathook.task where organization = $1 and kind = $2 and id = $3

-- name: claim_run
-- Claims a consistency check that was not started, or whose process sent no heartbeat for a while.
update boathook.task
set place = json_build_object('by', $2::text), data = '{}', updated_at = clock_timestamp()
where id = (
    select id from boathook.task
    where kind = $1 and state = 'running'
        and (place is null or updated_at < clock_timestamp() - $3::interval)
    order by id
    limit 1
    for update skip locked)
returning *

-- name: note_progress
-- Stores the progress of a consistency check, if this process still holds it.
update boathook.task set data = $3, updated_at = clock_timestamp()
where id = $1 and state = 'running' and place ->> 'by' = $2
returning id

-- name: end_run
-- Stores the result of a consistency check, if this process still holds it.
update boathook.task set state = $3, data = $4, updated_at = clock_timestamp()
where id = $1 and state = 'running' and place ->> 'by' = $2
returning id

-- name: stop_run
-- Ends a consistency check for an operator.
update boathook.task set state = 'failed', data = json_build_object('error', $2::text), updated_at = clock_timestamp()
where id = $1 and state = 'running'
returning id

-- name: forget_runs
-- Deletes the finished consistency checks except for the newest.
delete from boathook.task
where kind = $2 and state <> 'running' and id < (
    select id from boathook.task where organization = $1 and kind = $2 order by id desc offset $3 limit 1)
