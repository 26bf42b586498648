-- name: list_secrets
-- Reads the unexpired secrets of all sources, newest first.
select id, source, encrypted, note, added_by, added_at, expires_at
from boathook.source_secret
where expires_at is null or expires_at > clock_timestamp()
order by id desc

-- name: list_of_source
-- Reads the secrets of one source, newest first, including recently expired ones.
select id, source, encrypted, note, added_by, added_at, expires_at
from boathook.source_secret
where source = $1
order by id desc

-- name: lock_source
-- Locks a source's secrets against other changes until this transaction ends.
select pg_advisory_xact_lock(hashtextextended('boathook.source_secret:' || $1, 0))

-- name: insert_secret
-- Stores a secret.
insert into boathook.source_secret (id, source, encrypted, note, added_by)
values ($1, $2, $3, $4, $5)
returning id, source, encrypted, note, added_by, added_at, expires_at

-- name: expire_secret
-- Lets an unexpired secret of a source expire after a delay; null removes its expiry.
update boathook.source_secret set expires_at = clock_timestamp() + $3::interval
where source = $1 and id = $2 and (expires_at is null or expires_at > clock_timestamp())
returning id, source, encrypted, note, added_by, added_at, expires_at

-- name: expire_others
-- Lets all other secrets of a source expire after a delay, except those that expire sooner.
update boathook.source_secret set expires_at = clock_timestamp() + $3::interval
where source = $1 and id <> $2 and (expires_at is null or expires_at > clock_timestamp() + $3::interval)
returning id

-- name: remove_secret
-- Deletes a secret of a source.
delete from boathook.source_secret where source = $1 and id = $2 returning id

-- name: forget_ended
-- Deletes secrets that expired more than a week ago.
delete from boathook.source_secret where expires_at < clock_timestamp() - interval '7 days'

-- name: announce_change
-- Notifies all gateways that the secrets have changed, once this transaction commits.
select pg_notify($1, '')

-- name: insert_later
-- Stores a secret as another database has it; one that is known ends when it does there, if that is earlier.
insert into boathook.source_secret (id, source, encrypted, note, added_by, added_at, expires_at)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (id) do update set expires_at = least(source_secret.expires_at, excluded.expires_at)
