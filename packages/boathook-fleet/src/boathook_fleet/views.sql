-- The tables of the system before this one, for queries that know their names.

create view {schema}.rentprog_webhook_events as
select change.event_id::text as id, change.accepted_at as received_at, change.entity, change.action, change.branch,
    change.actor as actor_id, change.description, fleet.body_json(event.body) as payload
from fleet.change as change left join boathook.event as event on event.id = change.event_id
where change.source = 'rentprog'
union all
select unknown.event_id::text, unknown.accepted_at, null, null, null, null, unknown.reason, fleet.body_json(event.body)
from fleet.unknown as unknown left join boathook.event as event on event.id = unknown.event_id
where unknown.source = 'rentprog'
union all
select id, received_at, entity, action, branch, actor_id, description, document -> 'payload' from fleet.imported_events;

-- A change that cannot be applied is a dead letter of the app's own event. Shown is the request that made the change.
create view {schema}.rentprog_webhook_dead as
select fleet.delivery_id(delivery.event_id, delivery.ordinal) as id,
    coalesce(retry.first_seen_at, delivery.dead_at) as created_at, fleet.body_json(request.body) as payload,
    coalesce(delivery.error, delivery.code) as error, 'worker_fail' as status, request.id::text as event_id,
    request.type as event_name, coalesce(retry.replays, 0) as retry_count,
    case when retry.replays > 0 then delivery.dead_at end as last_retry_at
from boathook.delivery as delivery
join boathook.event as event on event.id = delivery.event_id
left join lateral (
    select change.event_id from fleet.change as change
    where delivery.recipient = 'handler:fleet.apply' and change.entity = fleet.body_json(event.body) ->> 'entity'
        and change.entity_id = fleet.body_json(event.body) ->> 'id' and change.source = 'rentprog'
    order by change.accepted_at desc limit 1
) as latest on true
join boathook.event as request on request.id = coalesce(latest.event_id, event.id)
left join fleet.dead_retry as retry
    on retry.delivery_id = fleet.delivery_id(delivery.event_id, delivery.ordinal)
where delivery.state = 'dead' and delivery.recipient in ('handler:fleet.note', 'handler:fleet.apply')
    and request.source = 'rentprog'
union all
select id, created_at, payload, error, status, event_id, event_name, retry_count, last_retry_at from fleet.imported_dead;

comment on view {schema}.rentprog_webhook_events is '{mark}';
comment on view {schema}.rentprog_webhook_dead is '{mark}';
