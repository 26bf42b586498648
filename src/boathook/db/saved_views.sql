-- name: list_views
-- Lists the views of an operator, ordered by name.
select name, query from boathook.saved_view where operator_id = $1 order by lower(name), name

-- name: save_view
-- Stores a view, or replaces the one with its name, unless the operator has $4 others.
insert into boathook.saved_view (operator_id, name, query)
select $1, $2, $3
where (select count(*) from boathook.saved_view where operator_id = $1 and name <> $2) < $4
on conflict (operator_id, name) do update set query = excluded.query
returning name

-- name: delete_view
-- Deletes a view of an operator.
delete from boathook.saved_view where operator_id = $1 and name = $2 returning name
