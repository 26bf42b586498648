-- name: advance_mark
-- Notes that a batch has arrived: of series $1, it begins with sequence $2 and ends with $3, and its last event was
-- accepted at $4. Returns how many events before it are missing, and when the last one before them was accepted.
with earlier as (
    select sequence, last_event_at from boathook.buffer_mark where series = $1
)
insert into boathook.buffer_mark as m (series, sequence, lost, last_event_at)
values ($1::bigint, $3::bigint, greatest(0, $2::bigint - 1), $4::timestamptz)
on conflict (series) do update set
    sequence = greatest(m.sequence, excluded.sequence),
    lost = m.lost + greatest(0, $2::bigint - 1 - m.sequence),
    last_event_at = coalesce(excluded.last_event_at, m.last_event_at),
    changed_at = now()
returning greatest(0, $2::bigint - 1 - coalesce((select sequence from earlier), 0)) as lost,
    (select last_event_at from earlier) as after

-- name: read_marks
-- Reads the positions of series.
select series, sequence, lost from boathook.buffer_mark where series = any ($1::bigint[])

-- name: sum_lost
-- Counts the events that never arrived, and finds when that was noticed last.
select coalesce(sum(lost), 0)::bigint as lost, max(changed_at) as noticed_at from boathook.buffer_mark where lost > 0
