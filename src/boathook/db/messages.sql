-- messages.py and other modules replace words in braces: {direction} is asc or desc, {standing} and {status} are the
-- parts list_standing and tell_status below; bound_page wraps another statement, its {page}.

-- name: list_standing
-- All deliveries, open and ended, with the columns that determine their status: a part of other statements.
select event_id, ordinal::integer as ordinal, recipient, state, code, attempts, due_at
from boathook.delivery
union all
select event_id, ordinal, recipient, state, null, attempts, null
from boathook.delivery_archive

-- name: tell_status
-- The status of one message at one endpoint, over its deliveries k there: a part of other statements. 0 success,
-- 1 pending, 2 failed, 3 sending, 4 canceled; null if it has no delivery there.
case
    when count(*) = 0 then null
    when bool_or(k.state in ('succeeded', 'ignored')) then 0
    when bool_or(k.state in ('pending', 'leased')) then case when bool_or(k.attempts > 0) then 3 else 1 end
    when bool_and(k.code = 'CANCELED') then 4
    else 2
end

-- name: find_message
-- Reads one message of an application by its id.
select id, type, dedup_key, channels, tags, deliver_at, body, expunged_at is not null or coalesce(content_until < now(), false) as is_gone
from boathook.event
where id = $2 and application = $1

-- name: find_message_by_key
-- Reads one message of an application by its publisher's id, through the dedup keys.
select id, type, dedup_key, channels, tags, deliver_at, body, expunged_at is not null or coalesce(content_until < now(), false) as is_gone
from boathook.event
where id = (select event_id from boathook.dedup where key = $2) and application = $1 and dedup_key = $3

-- name: bound_page
-- Keeps the rows of a page whose preceding contents are less than a number of bytes, and returns how many there were.
select * from (
    select p.*, count(*) over () as found,
        sum(octet_length(p.body)) over (order by p.id {direction} rows between unbounded preceding and 1 preceding) as before
    from ({page}) as p
) as q
where coalesce(before, 0) < {most}
order by id {direction}

-- name: list_messages
-- Reads a page of an application's messages.
select id, type, dedup_key, channels, tags, deliver_at, case when $4 then body end as body,
    expunged_at is not null or coalesce(content_until < now(), false) as is_gone
from boathook.event
where application = $1 and id >= $2 and id < $3
    and ($5::text[] is null or type = any ($5))
    and ($6::text is null or $6 = any (channels))
    and ($7::text is null or $7 = any (tags))
order by id {direction}
limit $8

-- name: walk_all
-- An application's messages e from the page's end on, as most of them succeed: a part of other statements.
boathook.event e

-- name: walk_open
-- The messages e that have not succeeded at an endpoint, found through open deliveries and dead letters: a part as
-- above.
(
    select distinct event_id from boathook.delivery where recipient = $9 and event_id >= $2 and event_id < $3
) as o
join boathook.event e on e.id = o.event_id

-- name: list_pending_messages
-- Reads a page of an application's messages with deliveries to one endpoint, with their status there; the messages come
-- from one of the two parts above.
select e.id, e.type, e.dedup_key, e.channels, e.tags, e.deliver_at, case when $4 then e.body end as body,
    e.expunged_at is not null or coalesce(e.content_until < now(), false) as is_gone, s.status, s.next_at
from {messages}
cross join lateral (
    select {status} as status, min(k.due_at) filter (where k.state = 'pending') as next_at
    from ({standing}) as k
    where k.event_id = e.id and k.recipient = $9
) as s
where e.application = $1 and e.id >= $2 and e.id < $3
    and ($5::text[] is null or e.type = any ($5))
    and ($6::text is null or $6 = any (e.channels))
    and ($7::text is null or $7 = any (e.tags))
    and s.status is not null and ($10::integer is null or s.status = $10)
order by e.id {direction}
limit $8

-- name: list_destinations
-- Reads the status of one message at each endpoint with a delivery of it, deleted or not, by the endpoints' ids.
select p.id, p.uid, p.url, p.description, p.event_types, p.channels, p.throttle_rate, p.api_version, p.is_disabled,
    p.created_at, p.updated_at, s.status, s.next_at, case when s.next_at is not null then h.open_until end as paused_until
from (
    select k.recipient, {status} as status, min(k.due_at) filter (where k.state = 'pending') as next_at
    from ({standing}) as k
    where k.event_id = $1 and k.recipient like 'endpoint:%'
        and k.recipient collate "C" > $2 and k.recipient collate "C" < $3
    group by k.recipient
    order by k.recipient collate "C" {direction}
    limit $4
) as s
join boathook.endpoint p on p.id = boathook.endpoint_of(s.recipient) and p.application_id = $5
left join boathook.endpoint_health h on h.endpoint_id = p.id
order by p.id {direction}

-- name: insert_example
-- Stores a message for one endpoint, with a single attempt.
with known as (
    insert into boathook.dedup (key, event_id, body_sha256, expires_at)
    values ($5, $1, sha256($6), now() + interval '1 day')
),
stored as materialized (
    select boathook.store_events(
        p_ids => array[$1::uuid], p_applications => array[$2::text], p_types => array[$3::text],
        p_dedup_keys => array[$4::text], p_grades => '{none}', p_origins => '{published}', p_headers => '{"{}"}',
        p_content_types => '{application/json}', p_bodies => array[$6::bytea], p_hashes => array[sha256($6)],
        p_fanouts => '{1}', d_events => array[$1::uuid], d_ordinals => '{0}', d_recipients => array[$7::text],
        p_is_manual => true)
)
select pg_notify('boathook_due', '') from stored

-- name: list_listeners
-- Reads the subscriptions of an application's active endpoints.
select id, event_types, channels from boathook.endpoint
where application_id = $1 and deleted_at is null and not is_disabled

-- name: lock_pending
-- Locks the pending deliveries of these messages, in key order.
select from boathook.delivery where event_id = any ($1::uuid[]) and state = 'pending' order by event_id, ordinal for update

-- name: expunge_messages
-- Deletes the contents of an application's messages permanently; returns these, and which messages were found. Pending
-- deliveries are dead-lettered, because there is nothing left to send.
with found as materialized (
    select id, expunged_at from boathook.event where application = $1 and id = any ($2::uuid[])
),
gone as (
    update boathook.event e set body = '', expunged_at = now()
    from found f
    where e.id = f.id and f.expunged_at is null
    returning e.id
),
buried as (
    update boathook.delivery d
    set state = 'dead', dead_at = clock_timestamp(), is_blocked = false, code = 'EXPUNGED', error = 'its content was expunged'
    where d.event_id = any (array(select id from gone)) and d.leased_by is null and d.dead_at is null
    returning d.recipient, d.order_key
)
select
    (select coalesce(array_agg(id), '{}') from found) as found,
    (select coalesce(array_agg(id), '{}') from gone) as gone,
    (select coalesce(array_agg(recipient), '{}') from buried where order_key is not null) as recipients,
    (select coalesce(array_agg(order_key), '{}') from buried where order_key is not null) as order_keys

-- name: count_contents
-- Counts the messages of an application that have content, up to a number.
select count(*) from (select from boathook.event where application = $1 and expunged_at is null limit $2) as e

-- name: find_messages
-- Finds messages of an application by their ids and by their publishers' ids.
select id, dedup_key
from boathook.event
where application = $1
    and id = any ($2::uuid[] || array(select event_id from boathook.dedup where key = any ($3::uuid[])))

-- name: page_messages
-- Reads the next messages of an application, oldest first.
select id
from boathook.event
where application = $1 and id >= $2 and id < $3
order by id
limit $4

-- name: record_message_conflict
-- Keeps a message that is not stored because an earlier one has its id or idempotency key, if body or key differ. It
-- has its own id, so keeping it again changes nothing.
insert into boathook.conflict (
    id, event_id, application, dedup_key, differs, headers, content_type, body, body_sha256, type, grade, channels, tags,
    content_until)
select $1, e.id, $3, $4, case when e.body_sha256 <> $8 then 'body' else 'key' end, $5::json, $6, $7, $8, $9, $10, $11, $12,
    $13
from boathook.event e
where e.id = $2 and (e.body_sha256 <> $8 or e.dedup_key <> $4)
on conflict do nothing
