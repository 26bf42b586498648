-- name: insert_application
-- Stores an application, unless its uid is in use.
insert into boathook.application (id, organization, uid, name, throttle_rate, metadata)
values ($1, $2, $3, $4, $5, $6)
on conflict do nothing
returning *

-- name: find_application
-- Returns an organization's application by its id, uid or imported id; only $4 if that is not null.
select * from boathook.application
where organization = $1 and deleted_at is null and not is_operational and (id = $2 or uid = $3 or imported_id = $3)
    and ($4::uuid is null or id = $4)
order by (id = $2) is true desc
limit 1

-- name: lock_application
-- Returns an organization's application by its id, uid or imported id, locked against changes until the transaction ends.
select * from boathook.application
where organization = $1 and deleted_at is null and not is_operational and (id = $2 or uid = $3 or imported_id = $3)
order by (id = $2) is true desc
limit 1
for no key update

-- name: lock_home
-- Returns the installation that an application has moved to, locked against a move until the transaction ends.
select home from boathook.application where id = $1 for key share

-- name: save_application
-- Stores an application's changed fields.
update boathook.application
set uid = $3, name = $4, throttle_rate = $5, metadata = $6, updated_at = now()
where organization = $1 and id = $2
returning *

-- name: set_imported_id
-- Stores an application's id on the server that it was imported from.
update boathook.application set imported_id = $2, updated_at = now() where id = $1

-- name: list_applications
-- Returns the applications after an id, oldest first, or before it, newest first.
select * from boathook.application a
where organization = $1 and deleted_at is null and not is_operational and id {beyond} $2
    and (not $4 or exists (select from boathook.endpoint e where e.application_id = a.id and e.deleted_at is null))
    and (not $5 or not exists (
        select from boathook.endpoint e where e.application_id = a.id and e.deleted_at is null and e.is_disabled))
order by id {direction}
limit $3

-- name: raise_routes_version
-- Makes all publishers reload an application's endpoints.
update boathook.application set routes_version = routes_version + 1 where id = $1

-- name: delete_application
-- Marks an application and all its endpoints as deleted, which frees their uids.
with gone as (
    update boathook.application
    set deleted_at = now(), updated_at = now(), routes_version = routes_version + 1
    where organization = $1 and id = $2 and deleted_at is null
    returning id
)
update boathook.endpoint e
set deleted_at = now(), updated_at = now(), revision = e.revision + 1
from gone
where e.application_id = gone.id and e.deleted_at is null

-- name: find_operational_application
-- Returns the application for an organization's operational events.
select * from boathook.application where organization = $1 and is_operational and deleted_at is null

-- name: insert_operational_application
-- Stores the application for an organization's operational events, unless it exists.
insert into boathook.application (id, organization, name, is_operational) values ($1, $2, 'operational webhooks', true)
on conflict (organization) where is_operational do nothing
