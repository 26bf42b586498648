-- resends.py replaces words in braces: {standing} and {status} are parts in messages.sql, and
-- {revivable}, below, is one too.

-- name: lock_messages
-- Locks these messages for replays until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('boathook.replay:' || id, 0))
from (select id::text from unnest($1::uuid[]) as u (id) order by 1) as sorted

-- name: page_dead
-- Reads the next messages that died at a recipient before a time, oldest first.
select distinct event_id
from boathook.delivery
where recipient = $1 and state = 'dead' and event_id >= $2 and event_id < $3 and dead_at <= $4
order by event_id
limit $5

-- name: lock_dead
-- Locks the dead letters of these messages at a recipient, in key order.
select from boathook.delivery
where recipient = $1 and event_id = any ($2::uuid[]) and state = 'dead'
order by event_id, ordinal
for update

-- name: select_revivable
-- Selects one dead letter of each of these messages at a recipient, if the message has content, and no open or successful
-- delivery to the recipient. Skips dead letters that died after $3, and canceled ones unless $4.
select distinct on (d.event_id) d.event_id, d.ordinal
from boathook.delivery d
where d.recipient = $1 and d.event_id = any ($2::uuid[]) and d.state = 'dead' and d.dead_at <= $3
    and ($4 or d.code <> 'CANCELED')
    and not exists (
        select from ({standing}) as k
        where k.event_id = d.event_id and k.recipient = d.recipient and k.state <> 'dead')
    and exists (
        select from boathook.event e
        where e.id = d.event_id and e.expunged_at is null and (e.content_until is null or e.content_until > now()))
order by d.event_id, d.is_manual, d.ordinal

-- name: count_revivable
-- Returns of how many messages `revive_dead` would make a dead letter pending.
select count(*) from ({revivable}) as chosen

-- name: count_with_content
-- Returns how many of these messages have content.
select count(*) from boathook.event
where id = any ($1::uuid[]) and expunged_at is null and (content_until is null or content_until > now())

-- name: revive_dead
-- Makes the dead letters that `revivable` selects pending again, for one attempt. An ordered one is blocked until
-- `ordering.unblock` finds it first of its order key.
with chosen as materialized (
    {revivable}
)
update boathook.delivery d
set state = 'pending', attempts_before = d.attempts, replays = d.replays + 1, crashes = 0, free_retries = 0, dead_at = null,
    is_manual = true, enqueued_at = clock_timestamp(), due_at = clock_timestamp(), is_blocked = d.order_key is not null
where d.event_id = any (array(select event_id from chosen))
    and ((d.event_id, d.ordinal) in (select event_id, ordinal from chosen)) is true
returning d.event_id, d.ordinal::integer as ordinal, d.order_key

-- name: owe_messages
-- Adds a delivery of each of these messages to a recipient, if it has content. $4 selects messages without a delivery
-- there ('missing'), messages whose deliveries there have all ended ('ended'), or all ('all').
with input as (
    select * from unnest($2::uuid[], $3::text[]) with ordinality as u (event_id, order_key, position)
),
planned as (
    select i.event_id, i.order_key, i.position, greatest(e.fanout, n.ordinal) as ordinal
    from input i
    join boathook.event e on e.id = i.event_id
    cross join lateral (
        select coalesce(max(k.ordinal) + 1, 0) as ordinal,
            coalesce(bool_or(k.recipient = $1), false) as is_known,
            coalesce(bool_or(k.recipient = $1 and k.state in ('pending', 'leased')), false) as is_open
        from ({standing}) as k
        where k.event_id = i.event_id
    ) as n
    where e.expunged_at is null and (e.content_until is null or e.content_until > now())
        and ($4 = 'all' or ($4 = 'missing' and not n.is_known) or ($4 = 'ended' and n.is_known and not n.is_open))
)
select d.event_id, d.ordinal, d.order_key
from (
        select array_agg(event_id order by position) as events, array_agg(ordinal::bigint order by position) as ordinals,
            array_agg($1::text order by position) as recipients, array_agg(order_key order by position) as order_keys
        from planned
        where ordinal <= 32767
    ) as p,
    boathook.add_deliveries(p.events, p.ordinals, p.recipients, p.order_keys, null, null, null, $5::boolean) as d

-- name: page_candidates
-- Reads the next messages of an application, oldest first, with the input for routing; the body only if $6.
select e.id, e.type, e.channels, e.headers, case when $6 then e.body end as body,
    e.expunged_at is not null or coalesce(e.content_until < now(), false) as is_gone,
    exists (select from ({standing}) as k where k.event_id = e.id and k.recipient = $5) as is_known
from boathook.event e
where e.application = $1 and e.id >= $2 and e.id < $3
order by e.id
limit $4

-- name: page_pending
-- Reads the next messages of an application, oldest first, with their status and order key at a recipient; `is_wanted`
-- returns whether the filter matches: types, channel, tag, status, and the class of the last response.
select e.id, s.status, s.order_key,
    s.status is not null
    and ($6::text[] is null or e.type = any ($6))
    and ($7::text is null or $7 = any (e.channels))
    and ($8::text is null or $8 = any (e.tags))
    and ($9::integer is null or s.status = $9)
    and ($10::integer is null or l.status between $10 and $10 + 99) as is_wanted
from (
    select id, type, channels, tags from boathook.event
    where application = $1 and id >= $2 and id < $3
    order by id
    limit $4
) as e
cross join lateral (
    select {status} as status, max(k.order_key) as order_key
    from (
        select event_id, recipient, state, code, attempts, order_key from boathook.delivery
        union all
        select event_id, recipient, state, null, attempts, order_key from boathook.delivery_archive
    ) as k
    where k.event_id = e.id and k.recipient = $5
) as s
left join lateral (
    select a.status from boathook.attempt a
    where $10::integer is not null and a.event_id = e.id and a.recipient = $5 and a.id is not null
    order by a.id desc
    limit 1
) as l on true
order by e.id
