-- name: read_routes
-- Reads the active routes and their version as one JSON document.
select boathook.active_routes()

-- name: lock_route_version
-- Allows one registration at a time.
select version from boathook.route_version for update

-- name: read_routes_of
-- Reads every route, active or not, that an app declared or that names one of these recipients.
select recipient, position, app, is_active, json_build_object(
    'recipient', recipient, 'app', app, 'source', source, 'application', application, 'types', types,
    'filter', filter, 'order_by', order_by, 'policy', policy, 'timeout_s', timeout_s) as route
from boathook.route
where app = $1 or recipient = any ($2::text[])

-- name: save_routes
-- Inserts routes, or updates existing ones.
insert into boathook.route (recipient, position, app, source, application, types, filter, order_by, policy, timeout_s)
select r.recipient, r.position, r.app, r.source, r.application, r.types, r.filter, r.order_by, r.policy, r.timeout_s
from jsonb_to_recordset($1::jsonb) as r (
    recipient text, position smallint, app text, source text, application text, types text[], filter jsonb, order_by text,
    policy jsonb, timeout_s double precision)
on conflict (recipient, position) do update
set app = excluded.app, source = excluded.source, application = excluded.application, types = excluded.types,
    filter = excluded.filter, order_by = excluded.order_by, policy = excluded.policy, timeout_s = excluded.timeout_s,
    is_active = true, changed_at = now()

-- name: retire_routes
-- Marks routes as inactive; their deliveries keep their policy.
update boathook.route r
set is_active = false, changed_at = now()
from unnest($1::text[], $2::integer[]) as u (recipient, position)
where r.recipient = u.recipient and r.position = u.position

-- name: note_takeover
-- Records that an app now declares a recipient that another app declared before.
insert into boathook.audit (actor, action, subject, note) values ($1, 'route.taken_over', $2, $3)

-- name: find_operational
-- Finds the application for an organization's operational events, if it has an enabled endpoint.
select a.id from boathook.application a
where a.organization = $1 and a.is_operational and a.deleted_at is null
    and exists (select from boathook.endpoint e where e.application_id = a.id and e.deleted_at is null and not e.is_disabled)

-- name: read_schemas
-- Reads the JSON Schemas of an event type, by version.
select schemas from boathook.event_type where organization = $1 and name = $2

-- name: read_routing
-- Reads the routes for messages published for one name.
select boathook.routes_for($1, $2)

-- name: list_owners
-- Lists the apps that have declared active routes.
select distinct app from boathook.route where is_active and app <> '' order by app

-- name: is_registered
-- Returns whether an active route names a recipient.
select exists (select from boathook.route where recipient = $1 and is_active)

-- name: read_clock
-- Reads the server's clock.
select clock_timestamp()

-- name: insert_route_task
-- Stores the task that reroutes past events to a handler; tasks.py reads it.
insert into boathook.task (id, organization, kind, request) values ($1, $2, 'event.route-many', $3::text::json)

-- name: note_past
-- Records that a handler requested events accepted before its first registration.
insert into boathook.audit (actor, action, subject, note) values ($1, 'route.since', $2, $3)
