-- name: find_migrations
-- Returns whether the table of applied migrations exists; an empty database has none.
select to_regclass('boathook.migration') is not null

-- name: read_migrations
-- Reads the applied migrations with the hashes of their texts.
select app, name, sha256 from boathook.migration

-- name: note_migration
-- Records an applied migration.
insert into boathook.migration (app, name, sha256) values ($1, $2, $3)

-- name: read_privileges
-- Reads what this role may do with the database and boathook's schema.
select current_database() as database, current_user as role,
    has_database_privilege(current_database(), 'CREATE') as may_create, pg_get_userbyid(n.nspowner) as owner,
    pg_has_role(n.nspowner, 'USAGE') as is_owner
from (select) as here left join pg_namespace n on n.nspname = 'boathook'
