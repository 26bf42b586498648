-- name: assign_sources
-- Assigns sources to cells, unless a later assignment is known. Returns those that have changed.
insert into boathook.source_assignment as a (source, home, revision)
select * from unnest($1::text[], $2::text[], $3::bigint[]) as given (source, home, revision) order by source
on conflict (source) do update set home = excluded.home, revision = excluded.revision, assigned_at = now()
where a.revision < excluded.revision
returning source

-- name: claim_database
-- Notes which cell the database belongs to, unless it is known, and returns it.
with claimed as (
    insert into boathook.installation (name, app) values ($1, $2) on conflict do nothing returning name
)
select name from claimed union all select name from boathook.installation limit 1

-- name: list_assignments
-- Lists the cells of all sources that were assigned to one.
select source, home, revision from boathook.source_assignment order by source

-- name: find_application
-- Finds an organization's application by its id, uid or imported id, if it is here.
select id from boathook.application
where organization = $1 and deleted_at is null and not is_operational and home is null
    and (id = $2 or uid = $3 or imported_id = $3)

-- name: read_applications
-- Reads the cells of applications, as recorded in this one.
select id, organization, uid, name, home, routes_version as revision
from boathook.application
where id = any ($1::uuid[]) and deleted_at is null and not is_operational

-- name: list_moved_applications
-- Lists the applications that have moved to another cell, or are being moved from one.
select id, organization, uid, name, home, routes_version as revision
from boathook.application
where home is not null and deleted_at is null
order by id

-- name: export_application
-- Returns all rows that belong to an application, and the event types of its organization, as one JSON document.
select json_build_object(
    'application', (select json_agg(a) from boathook.application a where a.id = $1),
    'endpoint', (select coalesce(json_agg(e), '[]') from boathook.endpoint e where e.application_id = $1),
    'endpoint_secret', (
        select coalesce(json_agg(s order by s.id), '[]')
        from boathook.endpoint_secret s join boathook.endpoint e on e.id = s.endpoint_id where e.application_id = $1),
    'endpoint_health', (
        select coalesce(json_agg(h), '[]')
        from boathook.endpoint_health h join boathook.endpoint e on e.id = h.endpoint_id where e.application_id = $1),
    'api_key', (select coalesce(json_agg(k), '[]') from boathook.api_key k where k.application_id = $1),
    'event_type', (
        select coalesce(json_agg(t), '[]')
        from boathook.event_type t join boathook.application a on a.organization = t.organization where a.id = $1))::text

-- name: list_columns
-- Lists the columns of tables, but those that each database numbers by itself.
select c.relname::text as name, array_agg(quote_ident(a.attname) order by a.attname) as columns
from pg_class c
join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = 'boathook'::regnamespace and c.relname = any ($1::text[])
    and a.attnum > 0 and not a.attisdropped and a.attidentity = ''
group by c.relname

-- name: replace_rows
-- Stores the rows of a table from an exported application; a known row is replaced.
insert into boathook.{table} ({columns})
select {columns} from json_populate_recordset(null::boathook.{table}, $1::text::json -> '{table}')
on conflict (id) do update set ({columns}) = row ({new_columns})

-- name: add_rows
-- Stores the rows of a table from an exported application; a known row stays as it is.
insert into boathook.{table} ({columns})
select {columns} from json_populate_recordset(null::boathook.{table}, $1::text::json -> '{table}')
on conflict do nothing

-- name: clear_endpoints
-- Deletes what is replaced by other rows, and frees the uids and imported ids of an application's endpoints, which may
-- have changed hands.
with secrets as (
    delete from boathook.endpoint_secret s using boathook.endpoint e where e.id = s.endpoint_id and e.application_id = $1
),
health as (
    delete from boathook.endpoint_health h using boathook.endpoint e where e.id = h.endpoint_id and e.application_id = $1
)
update boathook.endpoint set uid = null, imported_id = null
where application_id = $1 and (uid is not null or imported_id is not null)

-- name: lock_application
-- Returns whether a database has an application, and the cell that it names, locked until the transaction ends. This
-- waits for all transactions that have published to it or changed it.
select home from boathook.application where id = $1 for update

-- name: mark_reserved
-- Notes the old cell of an application that this cell gets. Its revision is lower than that of the old cell's row.
update boathook.application set home = $2, routes_version = routes_version - 1 where id = $1

-- name: name_home
-- Notes the cell that an application belongs to, null for this one, and makes publishers read that.
update boathook.application
set home = $2, routes_version = greatest(routes_version, $3) + 1, updated_at = now()
where id = $1
returning routes_version

-- name: count_open_deliveries
-- Counts the deliveries of an application's messages that have not ended.
select count(*)
from boathook.endpoint e
join boathook.delivery d on d.recipient = 'endpoint:' || boathook.show_id('ep', e.id)
where e.application_id = $1 and d.state in ('pending', 'leased')

-- name: read_message
-- Reads a message with everything that another cell needs to store it, given its id and its dedup key.
select e.id, e.application, e.type, e.dedup_key, e.headers::text as headers, e.content_type, e.body, e.body_sha256, e.channels,
    e.tags, e.deliver_at, e.content_until, a.id as application_id, a.organization, d.replay_key, d.request_sha256,
    coalesce(extract(epoch from d.expires_at - e.accepted_at) / 86400, 0)::float8 as memory_days
from boathook.event e
join boathook.application a on a.id = boathook.read_id('app', e.application)
left join boathook.dedup d on d.key = $2 and d.event_id = e.id
where e.id = $1 and e.expunged_at is null and coalesce(e.content_until > now(), true)
