-- Each statement reads one event, within limits: an event may have 32,767 deliveries, and bodies of many megabytes.

-- name: read_head
-- Reads an event with the first bytes of its body.
select e.id, e.source, e.application, e.type, e.dedup_key, e.grade, e.origin, e.accepted_at, e.content_type,
    octet_length(e.body) as size, e.fanout::integer as fanout, e.channels, e.tags, e.expunged_at, e.headers,
    substring(e.body from 1 for $2) as head
from boathook.event e where e.id = $1

-- name: list_some
-- Lists some of the event's deliveries, in order, starting at an ordinal.
select d.event_id, d.ordinal::integer as ordinal, d.recipient, d.state, d.attempts, d.due_at, d.code, d.note, d.ended_at,
    d.order_key, d.replays::integer as replays, d.is_replay, d.is_manual, d.item_path,
    e.source, e.application, e.grade, coalesce(d.item_type, e.type) as type
from (
    (select event_id, ordinal, recipient, state, attempts, case when state = 'pending' then due_at end as due_at, code,
        error as note, dead_at as ended_at, order_key, replays, is_replay, is_manual, item_path, item_type
    from boathook.delivery where event_id = $1 and ordinal >= $2 order by ordinal limit $3)
    union all
    (select event_id, ordinal, recipient, state, attempts, null, null, note, ended_at, order_key, replays, is_replay,
        is_manual, item_path, item_type
    from boathook.delivery_archive where event_id = $1 and ordinal >= $2 order by ordinal limit $3)
) as d
join boathook.event e on e.id = d.event_id
order by d.ordinal
limit $3

-- name: list_tries
-- Lists the attempts at some of its deliveries, latest first, with the first bytes of the response.
select a.ordinal::integer as ordinal, a.number, a.outcome, a.code, a.error, a.traceback, a.worker, a.started_at, a.ended_at, a.url,
    a.status::integer as status, a.duration_ms, a.request_headers, substring(a.response from 1 for $4) as response,
    octet_length(a.response) as response_size, coalesce(a.is_manual, false) as is_manual
from boathook.attempt a
where a.event_id = $1 and a.ordinal = any ($2::smallint[])
order by a.started_at desc, a.ordinal desc, a.number desc
limit $3

-- name: list_done
-- Lists the completed side effects of the event, which will not run again.
select recipient, name, result::text as result, done_at
from boathook.side_effect where event_id = $1 order by done_at, recipient, name limit $2

-- name: get_reply
-- Reads a handler's reply to the waiting sender.
select recipient, status::integer as status, content_type, substring(body from 1 for $2) as body, octet_length(body) as size, created_at
from boathook.reply where event_id = $1

-- name: list_notes
-- Lists the operator actions on these subjects, latest first.
select id, at, actor, action, subject, note
from boathook.audit where subject = any ($1::text[]) order by id desc limit $2

-- name: list_twins
-- Lists the conflicts with the event, latest first.
select c.id, c.event_id, c.source, c.application, c.dedup_key, c.differs, c.seen, c.last_seen_at, octet_length(c.body) as size
from boathook.conflict c where c.event_id = $1 order by c.id desc limit $2

-- name: get_conflict
-- Reads one conflict with its bytes.
select c.id, c.event_id, c.source, c.application, c.dedup_key, c.differs, c.seen, c.last_seen_at, octet_length(c.body) as size,
    c.headers, c.body, c.content_type
from boathook.conflict c where c.id = $1

-- name: find_url
-- Reads the URL of a recipient's endpoint.
select url from boathook.endpoint where id = boathook.endpoint_of($1)
