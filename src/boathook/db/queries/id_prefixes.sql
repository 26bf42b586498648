-- Ids between a first and a last one, at most as many as asked for; each statement reads the beginning of one index.

-- name: find_events
-- Finds events and messages.
select id from boathook.event where id between $1 and $2 order by id limit $3

-- name: find_deliveries
-- Finds deliveries, open and ended.
select d.event_id, d.ordinal::integer as ordinal
from (
    (select event_id, ordinal from boathook.delivery where event_id between $1 and $2 order by event_id, ordinal limit $3)
    union all
    (select event_id, ordinal from boathook.delivery_archive where event_id between $1 and $2 order by event_id, ordinal limit $3)
) as d
order by d.event_id, d.ordinal
limit $3

-- name: find_dead_groups
-- Finds groups of dead letters; from each it goes to the next, however many dead letters a group has.
with recursive found as (
    (
        select boathook.dead_group(recipient, code, error) as id
        from boathook.delivery
        where state = 'dead' and boathook.dead_group(recipient, code, error) between $1 and $2
        order by boathook.dead_group(recipient, code, error)
        limit 1
    )
    union all
    select (
        select boathook.dead_group(recipient, code, error)
        from boathook.delivery
        where state = 'dead' and boathook.dead_group(recipient, code, error) > f.id
            and boathook.dead_group(recipient, code, error) <= $2
        order by boathook.dead_group(recipient, code, error)
        limit 1
    )
    from found f
    where f.id is not null
)
select id from found where id is not null limit $3

-- name: find_rejections
-- Finds rejected requests.
select id from boathook.rejection where id between $1 and $2 order by id limit $3

-- name: find_conflicts
-- Finds conflicts.
select id from boathook.conflict where id between $1 and $2 order by id limit $3

-- name: find_applications
-- Finds applications of all organizations.
select id from boathook.application where id between $1 and $2 order by id limit $3

-- name: find_endpoints
-- Finds endpoints of all applications.
select id from boathook.endpoint where id between $1 and $2 order by id limit $3

-- name: find_api_keys
-- Finds API keys of all organizations.
select id from boathook.api_key where id between $1 and $2 order by id limit $3

-- name: find_source_secrets
-- Finds secrets that were added to sources.
select id from boathook.source_secret where id between $1 and $2 order by id limit $3

-- name: find_silences
-- Finds silences of alerts.
select id from boathook.alert_silence where id between $1 and $2 order by id limit $3
