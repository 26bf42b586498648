-- name: read_keys
-- Reads the dedup keys of the events of a source. A key whose event is gone, or is stored in another cell, may belong to
-- any source.
select d.key, d.replay_key, d.event_id, d.body_sha256, d.expires_at, d.item_path, d.request_sha256,
    coalesce(d.home, $2::text) as home, d.newest_key
from boathook.dedup d
left join boathook.event e on e.id = d.event_id
where d.expires_at > now() and (e.source = $1 or e.id is null)

-- name: read_message_keys
-- Reads the dedup keys of an application's messages, which `message_key` makes of their ids. With $3, also those whose
-- event is gone, which may belong to any application. The key of a message that was passed on counts in the cell that
-- has stored it; a copy of this one would look there as if it were stored already.
select d.key, d.replay_key, d.event_id, d.body_sha256, d.expires_at, d.item_path, d.request_sha256,
    coalesce(d.home, $2::text) as home, d.newest_key
from boathook.event e
join boathook.dedup d on d.key = encode(substr(sha256(
    'application'::bytea || '\x00' || convert_to(e.application, 'UTF8') || '\x00' || convert_to(e.dedup_key, 'UTF8')),
    1, 16), 'hex')::uuid
where e.application = $1 and d.expires_at > now()
    and (e.home is null or d.home is not null or d.event_id <> e.id)
union all
select d.key, d.replay_key, d.event_id, d.body_sha256, d.expires_at, d.item_path, d.request_sha256, $2, d.newest_key
from boathook.dedup d
where $3::boolean and d.home is null and d.expires_at > now()
    and not exists (select from boathook.event e where e.id = d.event_id)

-- name: insert_keys
-- Stores keys of events that another cell stores. A known key stays as it is. One whose body another event holds here comes
-- without the body: as a whole it would be left out, and the sender's next attempt taken for a new event.
insert into boathook.dedup (
    key, replay_key, event_id, body_sha256, expires_at, item_path, request_sha256, home, newest_key)
select k.key,
    case when k.request_sha256 is not null or not exists (
        select from boathook.dedup d where d.replay_key = k.replay_key) then k.replay_key end,
    k.event_id, k.body_sha256, k.expires_at, k.item_path, k.request_sha256, k.home, k.newest_key
from unnest(
    $1::uuid[], $2::uuid[], $3::uuid[], $4::bytea[], $5::timestamptz[], $6::text[], $7::bytea[], $8::text[], $9::uuid[]
) as k (key, replay_key, event_id, body_sha256, expires_at, item_path, request_sha256, home, newest_key)
order by k.key
on conflict do nothing

-- name: renew_objects
-- Updates the rows of objects that were copied before, for those with a newer event since.
update boathook.dedup d
set newest_key = k.newest_key, event_id = k.event_id, body_sha256 = k.body_sha256, expires_at = k.expires_at, home = k.home
from unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::timestamptz[], $5::text[], $6::uuid[])
    as k (key, event_id, body_sha256, expires_at, home, newest_key)
where d.key = k.key and d.home is not null and k.newest_key is not null and k.event_id > d.event_id

-- name: drop_passed_on
-- Deletes the keys of messages that were passed on, if their own cell has stored them or others with the same keys.
-- Returns their number.
with dropped as (
    delete from boathook.dedup d
    where (d.key = any ($1::uuid[]) or d.replay_key = any ($2::uuid[])) and d.home is null
        and exists (select from boathook.event e where e.id = d.event_id and e.home is not null)
    returning 1
)
select count(*) from dropped
