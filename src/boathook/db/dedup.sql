-- name: forget_expired
-- Deletes expired keys in key order, so that two gateways cannot deadlock.
delete from boathook.dedup
where key in (select key from boathook.dedup where key = any ($1::uuid[]) and expires_at < now() order by key for update)

-- name: read_keys
-- Reads the dedup keys of the events of a source. A key whose event is gone, or is stored in another cell, may belong to
-- any source.
select d.key, d.replay_key, d.event_id, d.body_sha256, d.expires_at, d.item_path, d.fingerprint, d.canonical,
    coalesce(d.cell, $2::text) as cell
from boathook.dedup d
left join boathook.event e on e.id = d.event_id
where d.expires_at > now() and (e.source = $1 or e.id is null)

-- name: insert_keys
-- Stores keys of events that another cell stores. A known key stays as it is.
insert into boathook.dedup (
    key, replay_key, event_id, body_sha256, expires_at, item_path, fingerprint, canonical, cell)
select * from unnest(
    $1::uuid[], $2::uuid[], $3::uuid[], $4::bytea[], $5::timestamptz[], $6::text[], $7::bytea[], $8::bytea[], $9::text[])
order by 1
on conflict do nothing
