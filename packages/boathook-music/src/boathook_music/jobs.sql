-- name: begin_cleaning
insert into music.cleaning (started_at)
select now() where not exists (
    select from music.cleaning where started_at > now() - $1 * interval '1 second'
) returning started_at;

-- name: end_cleaning
update music.cleaning set ended_at = now(), report = $2::jsonb where started_at = $1;
