-- Tries again, once this transaction is committed, the deliveries that wait for a key; returns how many of those that are
-- known so far. It waits for no lock: a delivery that another transaction holds, or that only now begins to wait, is left to
-- `match_signals` of the keeper.
create function boathook.signal(p_key text) returns integer language plpgsql set enable_seqscan = off as $$
declare
    woken integer;
begin
    insert into boathook.wait_signal (key) values (p_key);
    with waiting as materialized (
        select d.event_id, d.ordinal
        from boathook.delivery_wait w
        cross join lateral (
            select event_id, ordinal from boathook.delivery
            where event_id = w.event_id and ordinal = w.ordinal and attempts = w.attempts and state = 'pending'
                and due_at > clock_timestamp()
            for update skip locked
        ) as d
        where w.key = p_key
    ),
    due as (
        update boathook.delivery d
        set due_at = clock_timestamp(), enqueued_at = clock_timestamp()
        where d.event_id = any (array(select event_id from waiting))
            and ((d.event_id, d.ordinal) in (select event_id, ordinal from waiting)) is true
    )
    update boathook.delivery_wait w
    set woken_by = pg_current_xact_id()
    where w.key = p_key and (w.event_id, w.ordinal) in (select event_id, ordinal from waiting);
    get diagnostics woken = row_count;
    if woken > 0 then
        perform pg_notify('boathook_due', '');
    end if;
    return woken;
end $$;
