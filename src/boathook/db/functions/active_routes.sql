-- The active routes and their version, as one JSON document.
create function boathook.active_routes() returns json language sql stable as $$
    select json_build_object(
        'version', (select version from boathook.route_version),
        'routes', coalesce(
            (select json_agg(
                json_build_object(
                    'recipient', recipient, 'app', app, 'source', source, 'application', application, 'types', types,
                    'filter', filter, 'order_by', order_by, 'policy', policy, 'timeout_s', timeout_s)
                order by recipient, position)
             from boathook.route where is_active),
            '[]'),
        'assignments', coalesce(
            (select json_agg(json_build_object('source', source, 'home', home, 'revision', revision))
             from boathook.source_assignment),
            '[]'))
$$;
