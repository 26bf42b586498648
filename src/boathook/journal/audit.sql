-- name: insert_note
-- Notes who did what to what.
insert into boathook.audit (actor, action, subject, note) values ($1, $2, $3, $4)
