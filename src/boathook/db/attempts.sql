-- attempts.py replaces words in braces: {direction} is asc or desc, {columns} and {fitting} are the parts read_columns
-- and keep_fitting.

-- name: read_columns
-- The columns of an attempt a and its message e: a part of other statements.
a.id, a.event_id, a.recipient, a.url, a.status, a.duration_ms, a.outcome, a.error, a.is_manual,
case when $2 then a.response end as response, e.type, e.dedup_key, e.channels, e.tags, e.deliver_at, case when $3 then e.body end as body,
e.expunged_at is not null or coalesce(e.content_until < now(), false) as is_gone

-- name: keep_fitting
-- Conditions on attempts a at messages e: a part of other statements.
e.application = $1
and a.id is not null and a.id >= $4 and a.id < $5
and ($6::text[] is null or e.type = any ($6))
and ($7::text is null or $7 = any (e.channels))
and ($8::text is null or $8 = any (e.tags))
and ($9::boolean is null or (a.outcome = 'succeeded') = $9)
and ($10::integer is null or a.status between $10 and $10 + 99)

-- name: list_of_endpoint
-- Reads a page of the attempts at one endpoint.
select {columns}
from boathook.attempt a
join boathook.event e on e.id = a.event_id
where a.recipient = $12 and {fitting}
order by a.id {direction}
limit $11

-- name: list_of_message
-- Reads a page of the attempts at one message, at all endpoints or at one.
select {columns}
from boathook.attempt a
join boathook.event e on e.id = a.event_id
where a.event_id = $12 and ($13::text is null or a.recipient = $13) and {fitting}
order by a.id {direction}
limit $11

-- name: find_attempt
-- Reads one attempt at a message.
select {columns}
from boathook.attempt a
join boathook.event e on e.id = a.event_id
where a.event_id = $4 and a.id = $5 and e.application = $1

-- name: expunge_attempt
-- Deletes the response to one attempt.
update boathook.attempt a
set response = 'EXPUNGED'::bytea, error = null, traceback = null
from boathook.event e
where a.event_id = $2 and a.id = $3 and e.id = a.event_id and e.application = $1

-- name: expunge_error
-- Deletes the error of that attempt from its delivery, if it is still open.
update boathook.delivery d
set error = null
where d.event_id = $1
    and ((d.ordinal, d.attempts) in (select ordinal, number from boathook.attempt where event_id = $1 and id = $2)) is true

-- name: count_attempts
-- Counts the attempts at one endpoint of an application by result.
select
    count(*) filter (where a.outcome = 'succeeded') as success, count(*) filter (where a.outcome <> 'succeeded') as fail
from boathook.attempt a
where a.recipient = $2 and a.id is not null and a.id >= $3 and a.id < $4
    and exists (
        select from boathook.endpoint p where p.id = boathook.endpoint_of($2) and p.application_id = $1)

-- name: count_pending
-- Counts the unfinished and canceled deliveries of one endpoint of an application in a window, by state.
select
    count(*) filter (where d.state = 'pending' and d.attempts = 0) as pending,
    count(*) filter (where d.state = 'leased' or (d.state = 'pending' and d.attempts > 0)) as sending,
    count(*) filter (where d.state = 'dead' and d.code = 'CANCELED') as canceled
from boathook.delivery d
where d.recipient = $2 and d.event_id >= $3 and d.event_id < $4
    and exists (
        select from boathook.endpoint p where p.id = boathook.endpoint_of($2) and p.application_id = $1)
