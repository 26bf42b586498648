-- name: find_migrations
-- Returns whether the table of applied migrations exists; an empty database has none.
select to_regclass('boathook.migration') is not null

-- name: read_migrations
-- Reads the applied migrations with the hashes of their texts.
select app, name, sha256 from boathook.migration

-- name: note_migration
-- Records an applied migration.
insert into boathook.migration (app, name, sha256) values ($1, $2, $3)
