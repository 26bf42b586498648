-- name: find_migrations
-- Tells whether the table of applied migrations is there, which an empty database lacks.
select to_regclass('boathook.migration') is not null

-- name: read_migrations
-- Reads which migrations were applied, with the hashes of their texts.
select app, name, sha256 from boathook.migration

-- name: note_migration
-- Remembers that a migration was applied.
insert into boathook.migration (app, name, sha256) values ($1, $2, $3)
