-- Adds deliveries to stored events, or items of them, for replays, resends and rerouting. Only this statement does so.
-- A null time means now. An ordered delivery is blocked until `ordering.unblock` finds it first of its order key.
create function boathook.add_deliveries(
    p_events uuid[], p_ordinals bigint[], p_recipients text[], p_order_keys text[], p_due timestamptz[], p_paths text[],
    p_types text[], p_is_manual boolean
) returns table (event_id uuid, ordinal integer, recipient text, order_key text) language sql as $$
    insert into boathook.delivery as o (
        event_id, ordinal, recipient, order_key, is_blocked, is_replay, is_manual, enqueued_at, due_at, item_path, item_type)
    select d.event_id, d.ordinal, d.recipient, d.order_key, d.order_key is not null, true, p_is_manual,
        coalesce(d.due, clock_timestamp()), coalesce(d.due, clock_timestamp()), d.path, d.type
    from unnest(p_events, p_ordinals, p_recipients, p_order_keys, p_due, p_paths, p_types)
        with ordinality as d (event_id, ordinal, recipient, order_key, due, path, type, position)
    order by d.position
    returning o.event_id, o.ordinal::integer, o.recipient, o.order_key
$$;
