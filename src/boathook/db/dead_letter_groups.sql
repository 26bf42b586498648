-- An index finds dead letters with the same cause: from one group to the next, and within a group by time of death.
-- A group may have dead letters of several organizations, as a handler serves all of them.

-- fragment: own
-- The organization that dead letter d belongs to.
(select {organization} from boathook.event e where e.id = d.event_id)

-- name: walk_groups
-- Walks from one group of dead letters to the next after $1, for $2 steps.
with recursive keys as (
    (select boathook.dead_group(recipient, code, error) as key, 1 as step
     from boathook.delivery
     where state = 'dead' and boathook.dead_group(recipient, code, error) > $1
     order by boathook.dead_group(recipient, code, error)
     limit 1)
    union all
    select n.key, k.step + 1
    from keys k
    cross join lateral (
        select boathook.dead_group(recipient, code, error) as key
        from boathook.delivery
        where state = 'dead' and boathook.dead_group(recipient, code, error) > k.key
        order by boathook.dead_group(recipient, code, error)
        limit 1
    ) as n
    where k.step < $2::integer
)
select key from keys

-- name: list_recent
-- Lists the groups of $4 dead letters that match recipient and code, among the $3 latest.
select distinct boathook.dead_group(recipient, code, error) as key
from (
    select recipient, code, error
    from (
        select recipient, code, error from boathook.delivery where state = 'dead' order by dead_at desc limit $3
    ) as newest
    where ($1::text is null or recipient like $1) and ($2::text is null or code = $2)
    limit $4
) as fitting

-- name: describe_groups
-- Reads for these groups of dead letters ($1, shown as $6) that match recipient and code: how many there are, up to $4,
-- how many of them failed again after a replay, the oldest and the newest, how many died in each of the last 24 hours,
-- and who last replayed the group with action $5. $7 is null, or the only organization whose dead letters count; who
-- replayed those of all is then unknown.
select k.key, l.event_id, l.ordinal::integer as ordinal, l.recipient, l.code, l.error, boathook.dead_shape(l.error) as shape,
    l.attempts, l.dead_at as newest, c.oldest, c.number, c.again, r.at as replayed_at, r.actor as replayed_by,
    c.since_replay, h.hours, h.numbers
from unnest($1::uuid[], $6::text[]) as k (key, shown)
cross join lateral (
    select event_id, ordinal, recipient, code, error, attempts, dead_at
    from boathook.delivery d
    where state = 'dead' and boathook.dead_group(recipient, code, error) = k.key
        and ($7::text is null or {own} = $7)
    order by boathook.dead_group(recipient, code, error) desc, dead_at desc
    limit 1
) as l
left join lateral (
    select at, actor from boathook.audit
    where subject = k.shown and action = $5 and $7 is null
    order by id desc
    limit 1
) as r on true
cross join lateral (
    select count(*) as number, min(dead_at) as oldest, count(*) filter (where replays > 0) as again,
        count(*) filter (where dead_at > r.at and replays = 0) as since_replay
    from (
        select dead_at, replays from boathook.delivery d
        where state = 'dead' and boathook.dead_group(recipient, code, error) = k.key
            and ($7::text is null or {own} = $7)
        limit $4::integer
    ) as those
) as c
cross join lateral (
    select array_agg(hour) as hours, array_agg(number) as numbers
    from (
        select count(*) as number, width_bucket(
            dead_at, (select array_agg(now() - make_interval(hours => n) order by n desc) from generate_series(0, 24) as n)) as hour
        from (
            select dead_at from boathook.delivery d
            where state = 'dead' and boathook.dead_group(recipient, code, error) = k.key and dead_at >= now() - interval '24 hours'
                and ($7::text is null or {own} = $7)
            limit $4::integer
        ) as latest
        group by hour
    ) as by_hour
) as h
where ($2::text is null or l.recipient like $2) and ($3::text is null or l.code = $3)

-- name: list_types
-- Lists the event types, or item types, of the $2 latest dead letters of each of these groups; $3 is null or the only
-- organization that they may belong to.
select k.key, array_agg(distinct l.type order by l.type) as types
from unnest($1::uuid[]) as k (key)
cross join lateral (
    select coalesce(d.item_type, e.type) as type
    from (
        select event_id, item_type from boathook.delivery d
        where state = 'dead' and boathook.dead_group(recipient, code, error) = k.key
            and ($3::text is null or {own} = $3)
        order by boathook.dead_group(recipient, code, error) desc, dead_at desc
        limit $2
    ) as d
    join boathook.event e on e.id = d.event_id
) as l
group by k.key

-- name: page_letters
-- Reads the next dead letters of a group, latest first.
select d.event_id, d.ordinal::integer as ordinal, d.recipient, d.state, d.attempts, null::timestamptz as due_at, d.code, d.error as note,
    d.dead_at as ended_at, d.order_key, d.replays::integer as replays, d.is_replay, d.is_manual, d.item_path,
    e.source, e.application, e.grade, coalesce(d.item_type, e.type) as type
from (
    select * from boathook.delivery
    where state = 'dead' and boathook.dead_group(recipient, code, error) = $1
        and ($2::timestamptz is null or dead_at <= $2)
        and ($2::timestamptz is null or (dead_at, event_id, ordinal) < ($2, $3::uuid, $4::integer))
    order by boathook.dead_group(recipient, code, error) desc, dead_at desc, event_id desc, ordinal desc
    limit $5
) as d
join boathook.event e on e.id = d.event_id
order by d.dead_at desc, d.event_id desc, d.ordinal desc

-- name: look_at_letters
-- Scans the $11 dead letters before a cursor ($8 to $10), within a time range ($6, $7), and returns up to $12 that
-- match source, application, type pattern, recipient pattern and code, and belong to organization $13 unless that is
-- null. The last scanned one is included, whether it `fits` or not.
with looked as materialized (
    select *, row_number() over (order by dead_at desc, event_id desc, ordinal desc) as number
    from boathook.delivery
    where state = 'dead' and dead_at >= coalesce($6::timestamptz, '-infinity') and dead_at < coalesce($7::timestamptz, 'infinity')
        and ($8::timestamptz is null or dead_at <= $8)
        and ($8::timestamptz is null or (dead_at, event_id, ordinal) < ($8, $9::uuid, $10::integer))
    order by dead_at desc, event_id desc, ordinal desc
    limit $11
),
fitting as (
    select d.*, e.source, e.application, e.grade, coalesce(d.item_type, e.type) as type
    from looked d
    join boathook.event e on e.id = d.event_id
    where ($1::text is null or e.source = $1 or {first_source} = $1)
        and ($2::text is null or e.application = any ((select boathook.application_names($2))::text[]))
        and ($3::text is null or e.type like $3 or d.item_type like $3 or {first_type} like $3)
        and ($4::text is null or d.recipient like $4)
        and ($5::text is null or d.code = $5)
        and ($13::text is null or {organization} = $13)
    order by d.number
    limit $12
),
last as (
    select * from looked where number = $11::bigint and number not in (select number from fitting)
)
select true as fits, number, event_id, ordinal::integer as ordinal, recipient, state, attempts, null::timestamptz as due_at, code,
    error as note, dead_at as ended_at, order_key, replays::integer as replays, is_replay, is_manual, item_path, source,
    application, grade, type
from fitting
union all
select false, number, event_id, ordinal::integer, recipient, state, attempts, null, code, null, dead_at, order_key, replays::integer,
    is_replay, is_manual, item_path, null, null, '', ''
from last
order by number

-- name: foresee_replay
-- Reads whether a recipient accepts deliveries and has a route, and how many of the group's $3 oldest dead letters have
-- lost their content, so that they cannot be replayed; $4 is null or the only organization that they may belong to.
select boathook.accepts_deliveries($2) as is_open,
    starts_with($2, 'endpoint:') or exists (select from boathook.route where recipient = $2 and is_active) as has_route,
    (select count(*) filter (where e.expunged_at is not null)
     from (
         select event_id from boathook.delivery d
         where state = 'dead' and boathook.dead_group(recipient, code, error) = $1
             and ($4::text is null or {own} = $4)
         order by boathook.dead_group(recipient, code, error), dead_at
         limit $3
     ) as d
     join boathook.event e on e.id = d.event_id) as expunged

-- name: lock_group
-- Locks the next dead letters of a group that died by $2, oldest first, skipping those that another operator holds; $4
-- also skips those that cannot be replayed, because their content was deleted or their endpoint is deleted or disabled.
-- $5 is null or the only organization that they may belong to.
select d.event_id, d.ordinal::integer as ordinal
from boathook.delivery d
join boathook.event e on e.id = d.event_id
where d.state = 'dead' and boathook.dead_group(d.recipient, d.code, d.error) = $1 and d.dead_at <= $2
    and (not $4::boolean or (e.expunged_at is null and boathook.accepts_deliveries(d.recipient)))
    and ($5::text is null or {organization} = $5)
order by boathook.dead_group(d.recipient, d.code, d.error), d.dead_at
limit $3
for update of d skip locked

-- name: find_group
-- Reads the group of a dead letter.
select boathook.dead_group(recipient, code, error) from boathook.delivery
where event_id = $1 and ordinal = $2 and state = 'dead'
