-- name: request
-- Requests an object that is known by updates alone, unless that has been done; no row for any other.
insert into fleet.fetch as kept (entity, entity_id, apply_at)
select $1, $2, now() + make_interval(secs => $3)
where not exists (select from fleet.{table} where id = $2 and stamp is not null)
    and not exists (select from fleet.change where entity = $1 and entity_id = $2 and action <> 'update')
on conflict (entity, entity_id) do update set apply_at = kept.apply_at -- as a lock
returning requested_at = now() as is_new, finished_at is null and not is_overdue as is_waiting

-- name: end_waits
-- Ends the waits that have taken too long, and returns the objects.
update fleet.fetch set is_overdue = true where finished_at is null and not is_overdue and apply_at <= now()
returning entity, entity_id

-- name: waiting
-- Returns the values before of the updates that were accepted before a time.
select before from fleet.change where entity = $1 and entity_id = $2 and accepted_at < $3 and before <> '{}'

-- name: branch
select branch from fleet.change where entity = $1 and entity_id = $2 and branch is not null order by stamp desc limit 1

-- name: finish
update fleet.fetch set finished_at = now(), result = $3 where entity = $1 and entity_id = $2

-- name: count_open
select count(*) from fleet.fetch where finished_at is null
