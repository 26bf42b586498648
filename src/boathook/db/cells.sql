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
