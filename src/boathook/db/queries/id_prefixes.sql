-- Ids between a first and a last one, at most as many as asked for; each statement reads the beginning of one index. $4
-- is null, or the only organization whose objects are found; what belongs to none is found by operators only.

-- fragment: own_event
-- Whether event e belongs to organization $4, or may belong to any.
($4::text is null or {organization} = $4)

-- name: find_events
-- Finds events and messages.
select e.id from boathook.event e where e.id between $1 and $2 and {own_event} order by e.id limit $3

-- name: find_deliveries
-- Finds deliveries, open and ended.
select d.event_id, d.ordinal::integer as ordinal
from (
    (
        select d.event_id, d.ordinal from boathook.delivery d join boathook.event e on e.id = d.event_id
        where d.event_id between $1 and $2 and {own_event}
        order by d.event_id, d.ordinal limit $3
    )
    union all
    (
        select d.event_id, d.ordinal from boathook.delivery_archive d join boathook.event e on e.id = d.event_id
        where d.event_id between $1 and $2 and {own_event}
        order by d.event_id, d.ordinal limit $3
    )
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
select id from found f
where id is not null and ($4::text is null or exists (
    select from boathook.delivery d join boathook.event e on e.id = d.event_id
    where d.state = 'dead' and boathook.dead_group(d.recipient, d.code, d.error) = f.id and {own_event}))
limit $3

-- name: find_rejections
-- Finds rejected requests, which belong to the default organization, as all sources do.
select id from boathook.rejection where id between $1 and $2 and coalesce($4::text, 'default') = 'default' order by id limit $3

-- name: find_conflicts
-- Finds conflicts; each belongs to the owner of its event.
select e.id from boathook.conflict e where e.id between $1 and $2 and {own_event} order by e.id limit $3

-- name: find_applications
-- Finds applications.
select id from boathook.application
where id between $1 and $2 and ($4::text is null or organization = $4)
order by id limit $3

-- name: find_endpoints
-- Finds endpoints of all applications.
select e.id from boathook.endpoint e join boathook.application a on a.id = e.application_id
where e.id between $1 and $2 and ($4::text is null or a.organization = $4)
order by e.id limit $3

-- name: find_api_keys
-- Finds API keys.
select id from boathook.api_key
where id between $1 and $2 and ($4::text is null or organization = $4)
order by id limit $3

-- name: find_operator_tokens
-- Finds tokens of operators, which belong to no organization.
select id from boathook.operator_token where id between $1 and $2 and $4::text is null order by id limit $3

-- name: find_source_secrets
-- Finds secrets that were added to sources, which only operators see.
select id from boathook.source_secret where id between $1 and $2 and $4::text is null order by id limit $3

-- name: find_silences
-- Finds silences of alerts, which only operators see.
select id from boathook.alert_silence where id between $1 and $2 and $4::text is null order by id limit $3

-- name: find_tasks
-- Finds background tasks, which bulk jobs are.
select id from boathook.task
where id between $1 and $2 and ($4::text is null or organization = $4)
order by id limit $3
