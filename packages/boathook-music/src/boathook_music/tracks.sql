-- name: lock_task
select pg_advisory_xact_lock(hashtextextended('music:' || $1, 0));

-- name: note_callback
insert into music.callback
    (event_id, task_id, delivery_id, stage, code, message, clips, state, received_at)
values ($1, $2, $3, $4, $5, $6, $7::jsonb, 'waiting', $8)
on conflict (event_id, task_id) do nothing;

-- name: get_result
select state from music.callback where event_id = $1 and task_id = $2;

-- name: list_waiting
select event_id, stage, code, message, clips from music.callback
where task_id = $1 and state = 'waiting' order by received_at, event_id;

-- name: move_track
update music.track set status = $2, updated_at = now(),
    error_code = $3, error = $4, completed_at = case when $2 = 'complete' then now() else completed_at end,
    expected_since = case when $5 then now() end, asks = 0, asked_at = null, ask_error = null
where task_id = $1;

-- name: expect_nothing
update music.track set expected_since = null, ask_error = null where task_id = $1 and expected_since is not null;

-- name: put_clip
insert into music.clip (task_id, clip_id, position, title, duration_s) values ($1, $2, $3, $4, $5)
on conflict (task_id, clip_id) do update set title = excluded.title, duration_s = excluded.duration_s;

-- name: archive_track
update music.track set updated_at = now(), expected_since = case when $2 then null else expected_since end,
    archived_at = case when $2 then coalesce(archived_at, now()) end
where task_id = $1;

-- name: add_track
insert into music.track (task_id, owner, title, prompt, application) values ($1, $2, $3, $4::jsonb, $5)
on conflict (task_id) do nothing returning task_id;

-- name: list_tracks
select t.task_id, t.owner, t.title, t.status, t.error_code, t.error, t.created_at, t.updated_at, t.completed_at,
    t.archived_at, t.asks, t.asked_at, t.ask_error,
    count(f.kind) as files, count(f.kind) filter (where f.state = 'stored') as stored
from music.track t left join music.file f using (task_id)
where ($1::text is null or t.status = $1) and ($2::text is null or t.owner = $2)
    and ($3::text is null or (t.created_at, t.task_id) < (
        select created_at, task_id from music.track where task_id = $3
    ))
    and ($5::float8 is null or (t.status in ('pending', 'text', 'first')
        and t.expected_since < now() - $5 * interval '1 second'))
group by t.task_id order by t.created_at desc, t.task_id desc limit $4;

-- name: list_known_waiting
select distinct task_id from music.callback c
where state = 'waiting' and exists (select from music.track t where t.task_id = c.task_id) limit 100;

-- name: count_overdue
select count(*) from music.track
where expected_since < now() - $1 * interval '1 second' and status in ('pending', 'text', 'first');

-- name: get_status
select status from music.track where task_id = $1 for update;

-- name: mark_applied
update music.callback set state = $3, note = $4, applied_at = now() where event_id = $1 and task_id = $2;

-- name: delete_track
update music.track set status = 'deleted', updated_at = now(), expected_since = null
where task_id = $1 and status <> 'deleted';

-- name: get_track
select * from music.track where task_id = $1;

-- name: list_clips
select clip_id, position, title, duration_s from music.clip where task_id = $1 order by position, clip_id;

-- name: list_callbacks
select delivery_id, stage, code, message, state, note, received_at from music.callback
where task_id = $1 order by received_at, event_id;
