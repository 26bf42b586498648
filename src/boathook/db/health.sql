-- name: read_clock
-- Reads the server's clock.
select clock_timestamp() as now

-- name: read_server
-- Reads the server's version, its connection limit, the connections in use and how it compresses its write-ahead log.
select current_setting('server_version') as version, current_setting('max_connections')::integer as most,
    current_setting('wal_compression') as wal_compression,
    (select 'lz4' = any (enumvals) from pg_settings where name = 'wal_compression') is true as has_lz4,
    (select count(*) from pg_stat_activity where backend_type = 'client backend')::integer as used

-- name: read_connection_limits
-- Reads how many connections this role may open to this database: its own limit, the database's, and the server's without reserved ones.
select name, number from (
    select 'max_connections of the server' as name,
        current_setting('max_connections')::integer - (
            select sum(setting::integer) from pg_settings
            where name in ('superuser_reserved_connections', 'reserved_connections')
        )::integer as number
    union all
    select format('the connection limit of the role %I', rolname), rolconnlimit
    from pg_roles where rolname = current_user and not rolsuper
    union all
    select format('the connection limit of the database %I', datname), datconnlimit
    from pg_database, pg_roles where datname = current_database() and rolname = current_user and not rolsuper
) as limits
where number >= 0
order by number
limit 1

-- name: read_partitions
-- Reads the Monday of the latest week with a partition, and the number of events in the default partition.
select
    (select max(to_date(right(c.relname, 8), 'YYYYMMDD'))
     from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'boathook.event'::regclass and c.relname ~ '^event_[0-9]{8}$') as latest,
    (select count(*) from (select from boathook.event_default limit 1000) as found) as unpartitioned

-- name: list_unrouted
-- Lists recipients with unfinished deliveries but no active route.
select d.recipient, count(*) as number, min(d.enqueued_at) as oldest
from boathook.delivery d
where d.state in ('pending', 'leased') and boathook.endpoint_of(d.recipient) is null
    and not exists (select from boathook.route r where r.recipient = d.recipient and r.is_active)
group by d.recipient
order by number desc

-- name: read_backlog
-- Counts overdue deliveries, expired leases and dead letters, and reads the oldest due time.
select
    count(*) filter (where state = 'pending' and not is_blocked and due_at < now() - interval '1 minute') as overdue,
    min(due_at) filter (where state = 'pending' and not is_blocked) as oldest_due,
    count(*) filter (where state = 'leased' and lease_until < now() - interval '1 minute') as abandoned,
    count(*) filter (where state = 'dead') as dead
from boathook.delivery

-- name: read_standbys
-- Counts the connected standbys; only roles with pg_monitor see which of them are synchronous.
select
    count(*) filter (where state is distinct from 'backup') as connected,
    count(*) filter (where sync_state in ('sync', 'quorum')) as synchronous,
    coalesce(bool_or(sync_state is null), false) as is_hidden
from pg_stat_replication

-- name: read_oldest_snapshot
-- Reads the session that has blocked vacuum for the longest time.
select pid, coalesce(application_name, '') as name, coalesce(xact_start, query_start) as since
from pg_stat_activity
where backend_xmin is not null and pid <> pg_backend_pid()
order by age(backend_xmin) desc, xact_start
limit 1

-- name: list_prepared
-- Lists prepared transactions and replication slots that block vacuum.
select 'prepared transaction ' || gid as name, prepared as since from pg_prepared_xacts
union all
select 'replication slot ' || slot_name, null from pg_replication_slots where not active and (xmin is not null or catalog_xmin is not null)

-- name: read_sending
-- Counts endpoints, lists some that are disabled or paused, and counts the hosts from which boathook is connected.
select
    (select count(*) from boathook.endpoint where deleted_at is null) as endpoints,
    array(select id from boathook.endpoint
          where is_disabled and disabled_because <> 'manual' and deleted_at is null order by disabled_at desc limit 1000) as disabled,
    array(select h.endpoint_id from boathook.endpoint_health h join boathook.endpoint e on e.id = h.endpoint_id
          where h.open_until > now() and not e.is_disabled and e.deleted_at is null order by h.open_until desc limit 1000) as paused,
    (select count(distinct coalesce(client_addr, '127.0.0.1')) from pg_stat_activity
     where application_name ~ '^boathook:') as hosts,
    exists (select from boathook.endpoint_secret) as has_secrets
