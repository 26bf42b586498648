-- name: read_version
-- Reads a number that differs after each change of a stored source, by the version of each row.
select coalesce(sum(hashtextextended(id::text || xmin::text, 0)::numeric), 0)::text || ':' || count(*) as version
from boathook.source

-- name: list_sources
-- Reads all stored sources by name.
select name, id, paths, encrypted, created_by, created_at, changed_by, changed_at from boathook.source order by name

-- name: lock_sources
-- Locks the stored sources against other changes until this transaction ends.
select pg_advisory_xact_lock(hashtextextended('boathook.source', 0))

-- name: insert_source
-- Stores a source, unless there is one of this name.
insert into boathook.source (name, id, paths, encrypted, created_by, changed_by)
values ($1, $2, $3, $4, $5, $5)
on conflict (name) do nothing
returning name, id, paths, encrypted, created_by, created_at, changed_by, changed_at

-- name: update_source
-- Replaces the settings of a stored source.
update boathook.source set paths = $2, encrypted = $3, changed_by = $4, changed_at = clock_timestamp()
where name = $1
returning name, id, paths, encrypted, created_by, created_at, changed_by, changed_at

-- name: delete_source
-- Deletes a stored source.
delete from boathook.source where name = $1 returning name

-- name: delete_secrets
-- Deletes the secrets of a source.
delete from boathook.source_secret where source = $1 returning id

-- name: announce_change
-- Notifies all processes that the stored sources have changed, once this transaction commits.
select pg_notify($1, '')

-- name: insert_later
-- Stores a source as another database has it, unless there is a later one of this name.
insert into boathook.source (name, id, paths, encrypted, created_by, created_at, changed_by, changed_at)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (name) do update set
    id = excluded.id, paths = excluded.paths, encrypted = excluded.encrypted, created_by = excluded.created_by,
    created_at = excluded.created_at, changed_by = excluded.changed_by, changed_at = excluded.changed_at
where source.changed_at < excluded.changed_at
