-- The routes for messages of an application, found by id, uid or imported id, and their versions, as one JSON document.
-- Each version includes the id of the transaction that wrote it, because a rollback lets another one reuse its number.
-- Handlers may name an application by id, one of the default organization also by uid or imported id, and one that does
-- not exist yet.
-- All messages of an application that has moved to another installation go to the handler that passes them on to it.
create function boathook.routes_for(p_organization text, p_application text) returns json language sql stable as $$
    with found as materialized (
        select id, uid, imported_id, routes_version || '.' || xmin::text as version, boathook.show_id('app', id) as name, is_operational,
            home, routes_version as revision
        from boathook.application
        where organization = p_organization and deleted_at is null
            and (id = boathook.read_id('app', p_application) or uid = p_application or imported_id = p_application)
        order by (id = boathook.read_id('app', p_application)) is true desc
        limit 1
    ),
    lines as (
        select 1 as part, recipient as first, position as second, json_build_object(
                'recipient', recipient, 'app', app, 'application', coalesce((select name from found), p_application),
                'types', types, 'filter', filter, 'order_by', order_by) as route
        from boathook.route
        where is_active and (select home from found) is null and (
            application = (select name from found)
            or p_organization = 'default'
                and application in (p_application, (select uid from found), (select imported_id from found)))
        union all
        select 2, e.id::text, 0, json_build_object(
                'recipient', 'endpoint:' || boathook.show_id('ep', e.id), 'app', '', 'application', f.name,
                'types', coalesce(e.event_types, '{*}'), 'channels', e.channels, 'filter', e.filter, 'order_by', e.order_by)
        from found f join boathook.endpoint e on e.application_id = f.id
        where e.deleted_at is null and not e.is_disabled and f.home is null
        union all
        select 3, '', 0, json_build_object(
                'recipient', 'handler:' || coalesce((select app from boathook.installation), 'elsewhere') || '.' || home,
                'app', '', 'application', name, 'types', array['*'])
        from found where home is not null
    )
    select json_build_object(
        'registry', (select version || '.' || xmin::text from boathook.route_version),
        'application', (select row_to_json(found) from found),
        'routes', coalesce((select json_agg(route order by part, first, second) from lines), '[]'))
$$;
