-- name: list_owners
select f.stem, f.kind, f.key, f.state, f.sha256 is not null as was_stored, t.status, t.updated_at, t.archived_at
from music.file f join music.track t using (task_id) where f.stem = any($1);

-- name: list_rows
select f.task_id, f.clip_id, f.kind, f.key, f.stored_at, t.status, t.completed_at, t.archived_at
from music.file f join music.track t using (task_id)
where f.key collate "C" > $1 and ($2::text is null or f.key collate "C" <= $2) order by f.key collate "C" limit $3;

-- name: mark_lost
update music.file set state = $5, key = null, error_code = 'OBJECT_MISSING', error = 'its object is gone'
where task_id = $1 and clip_id = $2 and kind = $3 and key = $4 and state = 'stored';

-- name: mark_found
update music.file set state = 'stored', key = $3, error_code = null, error = null
where stem = $1 and kind = $2 and state in ('missing', 'failed') and size = $4 and sha256 is not null;

-- name: mark_removed
update music.file set state = 'removed', key = null where key = $1;
