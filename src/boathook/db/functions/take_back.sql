-- Takes back messages that were passed on to another installation, whose application has come back: adds their deliveries here,
-- and returns these messages. It leaves those whose key shows that another installation has stored them, or an earlier message.
create function boathook.take_back(
    p_ids uuid[], p_keys uuid[], d_events uuid[], d_ordinals smallint[], d_recipients text[], d_order_keys text[],
    d_due timestamptz[]
) returns uuid[] language plpgsql set enable_seqscan = off as $$
declare
    taken uuid[];
begin
    with found as (
        update boathook.event e set home = null
        from unnest(p_ids, p_keys) as m (id, key)
        where e.id = m.id and e.id = any (p_ids) and e.home is not null
            and exists (select from boathook.dedup d where d.key = m.key and d.event_id = m.id and d.home is null)
        returning e.id
    )
    select coalesce(array_agg(id), '{}') into taken from found;
    if taken = '{}' then
        return taken;
    end if;
    -- As for any replay, as two of them must not take the same ordinals.
    perform pg_advisory_xact_lock(hashtextextended('boathook.replay:' || id, 0))
    from (select id::text from unnest(taken) as t (id) order by 1) as sorted;
    perform boathook.unblock(a.recipient, a.order_key)
    from (
        select array_agg(d.event_id order by position) as events,
            array_agg(k.next + d.ordinal order by position) as ordinals,
            array_agg(d.recipient order by position) as recipients,
            array_agg(d.order_key order by position) as order_keys,
            array_agg(greatest(clock_timestamp(), d.due) order by position) as due
        from unnest(d_events, d_ordinals, d_recipients, d_order_keys, d_due)
            with ordinality as d (event_id, ordinal, recipient, order_key, due, position)
        join lateral (
            select coalesce(max(ordinal), -1) + 1 as next from (
                select ordinal from boathook.delivery where event_id = d.event_id
                union all
                select ordinal from boathook.delivery_archive where event_id = d.event_id
            ) as known
        ) as k on true
        where d.event_id = any (taken)
    ) as n,
        boathook.add_deliveries(n.events, n.ordinals, n.recipients, n.order_keys, n.due, null, null, false) as a
    where a.order_key is not null;
    return taken;
end $$;
