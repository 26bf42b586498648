-- name: find_app_revisions
-- Tells whether the table of applied files is there, which a database of an older boathook lacks.
select to_regclass('boathook.app_revision') is not null

-- name: read_app_revisions
-- Reads which files were applied, with the hashes of their texts.
select app, name, sha256 from boathook.app_revision

-- name: note_app_revision
-- Remembers that a file was applied.
insert into boathook.app_revision (app, name, sha256) values ($1, $2, $3)
