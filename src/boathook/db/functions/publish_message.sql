-- Runs publish_messages for one message, in the publisher's transaction and through any driver. The message is a JSON
-- object of the columns below, p_deliveries a list. Stores the cause of what a handler publishes. Returns 'accepted', or
-- the verdict of publish_messages.
create function boathook.publish_message(p_message json, p_body bytea, p_deliveries json) returns text language sql as $$
    with done as materialized (
        select m.id, m.cause_id, m.cause_ordinal, done.verdicts[1] as verdict
        from json_to_record(p_message) as m (
                id uuid, organization text, application uuid, uid text, name text, registry text, routes text, type text,
                dedup_key text, key uuid, replay_key uuid, request_sha256 bytea, memory interval, headers json,
                content_type text, channels text[], tags text[], deliver_at timestamptz, due timestamptz,
                content_until timestamptz, origin text, cause_id uuid, cause_ordinal smallint),
            (
                select coalesce(array_agg(u.position::smallint - 1::smallint order by u.position), '{}') as ordinals,
                    array_agg(u.recipient order by u.position) as recipients,
                    array_agg(u.order_key order by u.position) as order_keys,
                    count(*)::smallint as number, count(u.order_key) > 0 as has_order
                from rows from (json_to_recordset(p_deliveries) as (recipient text, order_key text))
                    with ordinality as u (recipient, order_key, position)
            ) as d,
            boathook.publish_messages(
                array[m.organization], array[m.application], array[m.uid], array[m.registry], array[m.routes],
                array[null::bytea], array[1], array[m.id], array[m.name], array[m.type], array[m.dedup_key], array[m.key],
                array[m.replay_key], array[m.request_sha256], array[m.memory], array[m.headers::text],
                array[m.content_type], array[p_body], array[sha256(p_body)], array[d.number], array[m.channels::text],
                array[m.tags::text], array[m.deliver_at], array[m.content_until], array_fill(m.id, array[d.number::integer]),
                d.ordinals, d.recipients, d.order_keys, array_fill(m.due, array[d.number::integer]), d.has_order,
                null, p_origin => coalesce(m.origin, 'published')
            ) as done
    ),
    linked as (
        insert into boathook.event_cause (event_id, cause_id, cause_ordinal, first_id)
        select d.id, d.cause_id, d.cause_ordinal,
            coalesce((select c.first_id from boathook.event_cause c where c.event_id = d.cause_id), d.cause_id)
        from done d where d.verdict is null and d.cause_id is not null
    )
    select coalesce(verdict, 'accepted') from done
$$;
