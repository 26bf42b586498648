-- name: read_counts
select (select count(*) from fleet.change where accepted_at > now() - interval '1 minute') as changes_1m,
    (select count(*) from fleet.dirty) as dirty, (select count(*) from fleet.unknown) as unknown

-- name: delete_changes
delete from fleet.change where accepted_at < now() - make_interval(secs => $1) and not exists
    (select from fleet.dirty where dirty.entity = change.entity and dirty.entity_id = change.entity_id)

-- name: delete_unknown
delete from fleet.unknown where accepted_at < now() - make_interval(secs => $1)

-- name: delete_announced
delete from fleet.announced where announced_at < now() - make_interval(secs => $1)

-- name: delete_errors
delete from fleet.error_log where created_at < now() - make_interval(secs => $1)

-- name: delete_fetches
delete from fleet.fetch where requested_at < now() - make_interval(secs => $1)

-- name: delete_plans
delete from fleet.dead_retry where last_seen_at < now() - make_interval(secs => $1)

-- name: cut_errors
delete from fleet.error_log where id <= (select id from fleet.error_log order by id desc offset $1 limit 1)
