-- name: get_key
select key from music.link_key;

-- name: add_key
insert into music.link_key (key) values ($1) on conflict do nothing;
