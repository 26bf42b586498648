-- name: assign_sources
-- Assigns sources to cells, unless a later assignment is known. Returns those that have changed.
insert into boathook.cell_assignment as a (source, cell, revision)
select * from unnest($1::text[], $2::text[], $3::bigint[]) as given (source, cell, revision) order by source
on conflict (source) do update set cell = excluded.cell, revision = excluded.revision, assigned_at = now()
where a.revision < excluded.revision
returning source

-- name: claim_database
-- Notes which cell the database belongs to, unless it is known, and returns it.
with claimed as (
    insert into boathook.cell_name (name) values ($1) on conflict do nothing returning name
)
select name from claimed union all select name from boathook.cell_name limit 1

-- name: list_assignments
-- Lists the cells of all sources that were assigned to one.
select source, cell, revision from boathook.cell_assignment order by source

-- name: read_keys
-- Reads the dedup keys of the events of a source. A key whose event is gone, or is stored in another cell, may belong to
-- any source.
select d.key, d.replay_key, d.event_id, d.body_sha256, d.expires_at, d.item_path, d.fingerprint, d.canonical,
    coalesce(d.cell, $2::text) as cell
from boathook.dedup d
left join boathook.event e on e.id = d.event_id
where d.expires_at > now() and (e.source = $1 or e.id is null)

-- name: insert_keys
-- Stores keys of events that another cell stores. A known key stays as it is.
insert into boathook.dedup (
    key, replay_key, event_id, body_sha256, expires_at, item_path, fingerprint, canonical, cell)
select * from unnest(
    $1::uuid[], $2::uuid[], $3::uuid[], $4::bytea[], $5::timestamptz[], $6::text[], $7::bytea[], $8::bytea[], $9::text[])
order by 1
on conflict do nothing

-- name: read_stored_source
-- Reads a stored source as it is, encrypted.
select name, id, paths, encrypted, created_by, created_at, changed_by, changed_at from boathook.source where name = $1

-- name: read_secrets
-- Reads the secrets of a source that operators have added, encrypted.
select id, source, encrypted, note, added_by, added_at, ends_at from boathook.source_secret where source = $1

-- name: insert_stored_source
-- Stores a source of another cell, unless there is a later one of this name.
insert into boathook.source (name, id, paths, encrypted, created_by, created_at, changed_by, changed_at)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (name) do update set
    id = excluded.id, paths = excluded.paths, encrypted = excluded.encrypted, created_by = excluded.created_by,
    created_at = excluded.created_at, changed_by = excluded.changed_by, changed_at = excluded.changed_at
where source.changed_at < excluded.changed_at

-- name: insert_secret
-- Stores a secret of another cell; one that is known ends when it does there.
insert into boathook.source_secret (id, source, encrypted, note, added_by, added_at, ends_at)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (id) do update set ends_at = least(source_secret.ends_at, excluded.ends_at)

-- name: announce_changes
-- Notifies all processes of a change, once this transaction commits.
select pg_notify(channel, '') from unnest($1::text[]) as channel
