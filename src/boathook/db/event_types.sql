-- name: insert_event_type
-- Stores an event type, unless the name exists.
insert into boathook.event_type (organization, name, description, is_archived, is_deprecated, schemas, feature_flags,
    group_name)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict do nothing
returning *

-- name: find_event_type
-- Returns an event type; with flags, only one that requires none or one of them.
select * from boathook.event_type
where organization = $1 and name = $2
    and ($3::text[] is null or feature_flags is null or feature_flags && $3)

-- name: lock_event_type
-- Returns an event type, locked against changes until the transaction ends.
select * from boathook.event_type where organization = $1 and name = $2 for update

-- name: save_event_type
-- Stores an event type's changed fields.
update boathook.event_type
set description = $3, is_archived = $4, is_deprecated = $5, schemas = $6, feature_flags = $7, group_name = $8,
    updated_at = now()
where organization = $1 and name = $2
returning *

-- name: list_event_types
-- Returns the event types after a name in ascending order, or before it in descending order.
select * from boathook.event_type
where organization = $1 and (name collate "C") {beyond} $2 and ($4 or not is_archived)
    and ($5::text[] is null or feature_flags is null or feature_flags && $5)
order by name collate "C" {direction}
limit $3

-- name: list_missing
-- Returns which of these names are not the name of an active event type.
select name from unnest($2::text[]) with ordinality as u (name, place)
where not exists (
    select from boathook.event_type t where t.organization = $1 and t.name = u.name and not t.is_archived)
order by place

-- name: delete_event_type
-- Deletes an event type.
delete from boathook.event_type where organization = $1 and name = $2

-- name: list_listeners
-- Returns active endpoints that subscribe to a type, those that name it before those that take all; * matches any
-- characters.
select p.id, p.url, p.event_types, p.is_disabled, a.id as application_id, a.uid as application_uid,
    a.name as application_name
from boathook.endpoint p
join boathook.application a on a.id = p.application_id
where a.organization = $1 and a.deleted_at is null and not a.is_operational and p.deleted_at is null
    and (p.event_types is null or exists (
        select from unnest(p.event_types) as t (pattern)
        where $2 like replace(replace(replace(replace(pattern, '\', '\\'), '_', '\_'), '%', '\%'), '*', '%')))
order by p.event_types is null, p.id
limit $3
