-- name: announce_track
-- In one statement, so that a track is announced once. A failure may be followed by success, never the reverse.
with news as (
    select coalesce(nullif(t.application, ''), $2) as application,
        case when t.status = 'failed' then 'failed'
            when t.status <> 'complete' or file.is_open or file.total = 0 then null
            when file.has_audio then 'ready' else 'failed' end as state
    from music.track t, lateral (
        select count(*) as total, coalesce(bool_or(state in ('wanted', 'retrying', 'missing')), false) as is_open,
            coalesce(bool_or(state = 'stored' and kind = 'audio'), false) as has_audio
        from music.file where task_id = t.task_id
    ) file where t.task_id = $1
)
update music.track t set announced = news.state from news
where t.task_id = $1 and news.application <> '' and (
    news.state = 'ready' and t.announced is distinct from 'ready' or news.state = 'failed' and t.announced is null)
returning t.announced, news.application, t.owner, t.title,
    coalesce(t.error_code, 'FILES_FAILED') as code,
    coalesce(t.error, 'none of its audio could be stored') as message;

-- name: list_clips
select clip_id, title, duration_s from music.clip where task_id = $1 order by position, clip_id;
