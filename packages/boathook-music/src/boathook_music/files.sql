-- name: want_file
insert into music.file as f (task_id, clip_id, kind, url, stem) values ($1, $2, $3, $4, $5)
on conflict (task_id, clip_id, kind) do update
    set url = excluded.url, state = 'wanted', round = f.round + 1, error_code = null, error = null,
        wanted_at = now()
    where f.state in ('removed', 'missing') or (f.state in ('failed', 'retrying') and f.url <> excluded.url)
returning round;

-- name: want_file_again
update music.file set state = 'wanted', round = round + 1, error_code = null, error = null, wanted_at = now()
where task_id = $1 and clip_id = $2 and kind = $3 and state in ('failed', 'missing', 'retrying') returning round;

-- name: find_wanted
select f.url, f.stem from music.file f join music.track t using (task_id)
where f.task_id = $1 and f.clip_id = $2 and f.kind = $3 and f.round = $4 and t.status = 'complete'
    and f.state in ('wanted', 'retrying', 'failed');

-- name: mark_stored
update music.file set state = 'stored', key = $5, size = $6, sha256 = $7, content_type = $8, stored_at = now(),
    error_code = null, error = null
where task_id = $1 and clip_id = $2 and kind = $3 and round = $4 and state <> 'stored';

-- name: mark_failed
update music.file set state = $5, error_code = $6, error = $7
where task_id = $1 and clip_id = $2 and kind = $3 and round = $4 and state in ('wanted', 'retrying', 'failed');

-- name: give_up
update music.file set state = 'failed', error_code = coalesce(error_code, 'GIVEN_UP'),
    error = coalesce(error, 'nobody could try it in time')
where task_id = $2 and state in ('wanted', 'retrying') and wanted_at < now() - $1 * interval '1 second';

-- name: list_expired
select distinct task_id from music.file
where state in ('wanted', 'retrying') and wanted_at < now() - $1 * interval '1 second';

-- name: get_content_type
select f.content_type from music.file f join music.track t using (task_id)
where f.key = $1 collate "C" and f.state = 'stored' and t.status <> 'deleted';

-- name: list_of_track
select task_id, clip_id, kind, state, round, key, size, sha256, content_type, error_code, error, wanted_at,
    stored_at
from music.file
where task_id = $1 order by clip_id, kind;

-- name: list_files
select task_id, clip_id, kind, state, round, key, size, sha256, content_type, error_code, error, wanted_at,
    stored_at
from music.file
where $1::text is null or state = $1 order by wanted_at desc, task_id, clip_id, kind limit $2;
