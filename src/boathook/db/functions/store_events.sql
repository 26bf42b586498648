-- Stores new events with their deliveries, in the transaction that has inserted their keys. Only this statement inserts
-- events, whatever their origin. Call it with named arguments. The p_ arrays describe the events, the d_ arrays the
-- deliveries, in the order in which ordered ones must run; an array of equal values may hold only one of them, and those
-- that default to null are null if no event or delivery has a value. Deliveries are due now, or at d_due if that is later.
-- p_new lists the events to be stored; null: all. p_has_order says whether a delivery has an order key, p_has_unhandled
-- whether an unhandled event may have no deliveries, p_is_manual whether each delivery gets only one attempt.
-- Returns whether an ordered delivery is blocked: the caller then unblocks its order key after the commit, because the
-- preceding delivery may have ended meanwhile.
create function boathook.store_events(
    p_ids uuid[], p_types text[], p_dedup_keys text[], p_grades text[], p_origins text[], p_headers text[],
    p_content_types text[], p_bodies bytea[], p_hashes bytea[], p_fanouts smallint[], d_events uuid[], d_ordinals smallint[],
    d_recipients text[], p_sources text[] default '{null}', p_applications text[] default '{null}',
    p_channels text[] default null, p_tags text[] default null, p_deliver_at timestamptz[] default null,
    p_content_until timestamptz[] default null, p_items text[] default null, p_new uuid[] default null,
    d_order_keys text[] default '{null}', d_due timestamptz[] default null, d_paths text[] default null,
    d_types text[] default null, p_has_order boolean default false, p_has_unhandled boolean default false,
    p_is_manual boolean default false, p_same_body_as uuid[] default null
) returns boolean language plpgsql set enable_seqscan = off as $$
declare
    accepted timestamptz := clock_timestamp();
    blocked boolean[];
begin
    insert into boathook.event (
        id, source, application, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout,
        channels, tags, deliver_at, content_until, items, same_body_as)
    select e.id, e.source, e.application, e.type, e.dedup_key, e.grade, e.origin, e.headers::json, e.content_type, e.body,
        e.body_sha256, e.fanout, e.channels::text[], e.tags::text[], e.deliver_at, e.content_until, e.items::json,
        e.same_body_as
    from unnest(
        p_ids, boathook.fill(p_sources, p_ids), boathook.fill(p_applications, p_ids), boathook.fill(p_types, p_ids),
        boathook.fill(p_dedup_keys, p_ids), boathook.fill(p_grades, p_ids), boathook.fill(p_origins, p_ids),
        boathook.fill(p_headers, p_ids), boathook.fill(p_content_types, p_ids), boathook.fill(p_bodies, p_ids),
        boathook.fill(p_hashes, p_ids), boathook.fill(p_fanouts, p_ids), p_channels, p_tags, p_deliver_at, p_content_until,
        p_items, p_same_body_as
    ) as e (
        id, source, application, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout, channels,
        tags, deliver_at, content_until, items, same_body_as)
    where p_new is null or e.id = any (p_new)
    order by e.id;
    if p_has_unhandled then
        insert into boathook.unhandled (event_id, subject)
        select e.id, coalesce(e.source, e.application)
        from unnest(
            p_ids, boathook.fill(p_sources, p_ids), boathook.fill(p_applications, p_ids), boathook.fill(p_fanouts, p_ids)
        ) as e (id, source, application, fanout)
        where e.fanout = 0 and (p_new is null or e.id = any (p_new))
            and (e.source is not null or boathook.read_id('app', e.application) is null)
        order by e.id
        on conflict do nothing;
    end if;
    if p_has_order then
        blocked := array(
            select d.order_key is not null and (
                count(*) filter (where p_new is null or d.event_id = any (p_new)) over (
                    partition by d.recipient, d.order_key order by d.position
                    rows between unbounded preceding and 1 preceding) > 0
                or exists (
                    select from boathook.delivery o
                    where o.recipient = d.recipient and o.order_key = d.order_key and o.state <> 'dead'))
            from unnest(d_events, boathook.fill(d_recipients, d_events), boathook.fill(d_order_keys, d_events))
                with ordinality as d (event_id, recipient, order_key, position)
            order by d.position);
    end if;
    insert into boathook.delivery (
        event_id, ordinal, recipient, order_key, is_blocked, enqueued_at, due_at, item_path, item_type, is_manual)
    select d.event_id, d.ordinal, d.recipient, d.order_key, coalesce(d.is_blocked, false), greatest(accepted, d.due),
        greatest(accepted, d.due), d.path, d.type, p_is_manual
    from unnest(
        d_events, boathook.fill(d_ordinals, d_events), boathook.fill(d_recipients, d_events),
        boathook.fill(d_order_keys, d_events), blocked, d_due, d_paths, d_types
    ) with ordinality as d (event_id, ordinal, recipient, order_key, is_blocked, due, path, type, position)
    where p_new is null or d.event_id = any (p_new)
    order by d.position;
    return coalesce(true = any (blocked), false);
end $$;
