-- Each statement reads one event, within limits: an event may have 32,767 deliveries, and bodies of many megabytes.

-- name: read_head
-- Reads an event with the first bytes of its body.
select {event_columns}, e.headers,
    substring(e.body from 1 for $2) as head
from boathook.event e where e.id = $1

-- name: list_some
-- Lists some of the event's deliveries, in order, starting at an ordinal.
select {delivery_columns}
from (
    (select {open_delivery}
    from boathook.delivery where event_id = $1 and ordinal >= $2 order by ordinal limit $3)
    union all
    (select {ended_delivery}
    from boathook.delivery_archive where event_id = $1 and ordinal >= $2 order by ordinal limit $3)
) as d
join boathook.event e on e.id = d.event_id
order by d.ordinal
limit $3

-- name: list_attempts
-- Lists the attempts at some of its deliveries, latest first, with the first bytes of the response.
select a.ordinal::integer as ordinal, a.number, a.outcome, a.code, a.error, a.traceback, a.dependency, a.worker, a.started_at, a.ended_at,
    a.url, a.status::integer as status, a.duration_ms, a.request_headers, substring(a.response from 1 for $4) as response,
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
-- Lists the operator actions on these subjects, and on the conflict that the event was, latest first.
select id, at, actor, action, subject, note
from boathook.audit where subject = any ($1::text[] || array(
    select dedup_key from boathook.event where id = $3 and origin = 'accepted_conflict'))
order by id desc limit $2

-- name: list_conflicts
-- Lists the conflicts with the event, latest first.
select c.id, c.event_id, c.source, c.application, c.dedup_key, c.type, c.differs, c.seen, c.last_seen_at, c.accepted_as,
    octet_length(c.body) as size
from boathook.conflict c where c.event_id = $1 order by c.id desc limit $2

-- name: get_conflict
-- Reads one conflict with its bytes.
select c.id, c.event_id, c.source, c.application, c.dedup_key, c.type, c.differs, c.seen, c.last_seen_at, c.accepted_as,
    octet_length(c.body) as size, c.headers, c.body, c.content_type
from boathook.conflict c where c.id = $1

-- name: find_url
-- Reads the URL of a recipient's endpoint.
select url from boathook.endpoint where id = boathook.endpoint_of($1)
