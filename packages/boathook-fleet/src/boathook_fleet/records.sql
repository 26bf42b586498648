-- name: note
insert into fleet.change (
    event_id, source, entity, entity_id, action, stamp, accepted_at, branch, actor, description, data, before, unparsed,
    is_stamped, is_late, branch_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, case when $14 then false end,
    coalesce($15, ({known_branch})))
on conflict (event_id) do nothing

-- name: mark
-- An update instead of doing nothing: it waits for a concurrent apply, and makes later ones wait.
insert into fleet.dirty as mark (entity, entity_id, oldest, changes, announced_at)
values ($1, $2, $3, 1, now())
on conflict (entity, entity_id) do update set
    oldest = least(mark.oldest, excluded.oldest),
    changes = mark.changes + 1,
    announced_at = case
        when mark.announced_at < now() - make_interval(secs => $4) then now() else mark.announced_at
    end
returning announced_at = now()

-- name: take
delete from fleet.dirty where entity = $1 and entity_id = $2 returning oldest, changes

-- name: replay
-- Of a repeated key, jsonb keeps the last value: the fields after all changes in order. A late creation fills in what
-- nothing else has set; other late changes set nothing.
with part as materialized (
    select *, row_number() over (order by is_late is not true, {order}) as place from fleet.change
    where entity = $1 and entity_id = $2 and stamp >= $3 and (is_late is not true or action = 'create')
),
field as (
    select f.key, f.value, part.place, coalesce(part.is_late, false) as is_late from part, jsonb_each(part.data) as f
),
mark as (
    select key, null::jsonb as value, place from field where not is_late
    union all
    select f.key, f.value, part.place from part, jsonb_each(part.unparsed) as f where part.is_late is not true
),
kept as (
    select data, unparsed_fields, deleted_at from fleet.{table} where id = $2 and not $4
)
select newest.action, newest.stamp, newest.branch, newest.actor, newest.description,
    case when newest.is_late then (select deleted_at from kept) when newest.action = 'delete' then newest.stamp end
        as deleted_at,
    coalesce((select jsonb_object_agg(key, value order by place) from field where is_late), '{{}}')
        || coalesce((select data from kept), '{{}}')
        || coalesce((select jsonb_object_agg(key, value order by place) from field where not is_late), '{{}}') as data,
    coalesce((select unparsed_fields from kept), '{{}}')
        || coalesce((select jsonb_object_agg(key, value order by place) from mark), '{{}}') as marks
from part as newest order by place desc limit 1

-- name: list_open
select event_id, action, stamp, accepted_at, data, before, is_stamped, is_late from fleet.change
where entity = $1 and entity_id = $2 and stamp >= $3 and is_late is null order by {order}

-- name: list_recent
select event_id, action, stamp, accepted_at, data, before, is_stamped, is_late from fleet.change
where entity = $1 and entity_id = $2 and accepted_at >= $3 order by accepted_at desc limit $4

-- name: is_overtaken
-- Whether a change was decided that comes behind one which was noted only now, because its delivery had to be repeated.
select exists (
    select from fleet.change
    where entity = $1 and entity_id = $2 and not is_stamped and is_late is not null and stamp > $3)

-- name: list_log
-- The whole log of an object; nothing if it has been cleaned up, or is too long.
select event_id, action, stamp, accepted_at, data, before, is_stamped, is_late from fleet.change
where entity = $1 and entity_id = $2
    and $3 = (select count(*) from fleet.change where entity = $1 and entity_id = $2 and not is_late)
    and $4 >= (select count(*) from fleet.change where entity = $1 and entity_id = $2)
order by {order}

-- name: decide
update fleet.change set is_late = event_id = any($1) where event_id = any($1 || $2::uuid[])

-- name: make_stub
insert into fleet.{table} (id) values ($1) on conflict do nothing

-- name: upsert
-- Never overwrites newer values with older ones, even if the log has been cleaned up: that is the guard.
insert into fleet.{table} as kept
    (id, data, stamp, deleted_at, changes, unparsed_fields, upserts, updated_at, {names})
values ($1, $2, $3, $4, $5, $6, 1, now(), {places})
on conflict (id) do update set data = excluded.data, unparsed_fields = excluded.unparsed_fields, stamp = excluded.stamp,
    deleted_at = excluded.deleted_at, updated_at = excluded.updated_at, {renewed},
    changes = kept.changes + excluded.changes, upserts = kept.upserts + 1
{guard}
returning true

-- name: add_to_feed
insert into fleet.feed as known (entity, entity_id, version, action, at, branch, actor, description)
values ($1, $2, nextval('fleet.feed_version'), $3, $4, $5, $6, $7)
on conflict (entity, entity_id) do update set
    version = excluded.version, action = excluded.action, at = excluded.at, branch = excluded.branch,
    actor = excluded.actor, description = excluded.description
returning version

-- name: list_feed
select version, entity, entity_id as id, action, at, branch, actor, description from fleet.feed
where version > $1 order by version limit $2

-- name: keep_unknown
insert into fleet.unknown (event_id, source, type, reason, sample, accepted_at)
values ($1, $2, $3, $4, $5, $6) on conflict (event_id) do update set reason = excluded.reason

-- name: list_objects
select id, {names}, stamp, deleted_at, stamp is null as is_stub, changes, upserts, unparsed_fields
from fleet.{table} where id > $1 order by id limit $2

-- name: read_totals
select count(*) as things, coalesce(sum(changes), 0)::bigint as changes, coalesce(sum(upserts), 0)::bigint as upserts
from fleet.{table}
