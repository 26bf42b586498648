-- name: get_key
select key from {schema}.link_key;

-- name: add_key
insert into {schema}.link_key (key) values ($1) on conflict do nothing;
