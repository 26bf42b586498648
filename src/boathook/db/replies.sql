-- name: find_replies
-- Returns for each event the reply of a handler, if there is one, and whether the event has an unfinished delivery.
select
    u.id, r.status, r.content_type, r.body,
    exists (select from boathook.delivery d where d.event_id = u.id and d.state <> 'dead') as is_open
from unnest($1::uuid[]) as u (id)
left join lateral (
    select status, content_type, body from boathook.reply where event_id = u.id limit 1
) as r on true
