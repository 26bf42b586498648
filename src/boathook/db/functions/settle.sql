-- Settles a delivery as succeeded or ignored, in the transaction of its effects. Raises BH001 when the fence no longer
-- holds, which aborts that transaction: a stale worker cannot commit, even if its code swallows errors. Raises BH002
-- when p_mark differs from boathook.mark: it was set for this transaction only, so the handler has ended it.
-- "leased_by is not null" means "state = 'leased'", but keeps the planner from using the index of leases. Functions that
-- look up deliveries by key never scan the table, because plans last longer than the size they were made for.
create function boathook.settle(
    p_event uuid, p_ordinal integer, p_fence bigint, p_state text, p_note text, p_worker text, p_started timestamptz,
    p_mark text default null
) returns void language plpgsql set enable_seqscan = off as $$
declare
    d boathook.delivery;
    ended timestamptz := clock_timestamp();
begin
    if p_mark is not null and current_setting('boathook.mark', true) is distinct from p_mark then
        raise exception 'the handler ended the transaction that boathook opened for it' using errcode = 'BH002';
    end if;
    delete from boathook.delivery
    where event_id = p_event and ordinal = p_ordinal and fence = p_fence and leased_by is not null
    returning * into d;
    if not found then
        raise exception 'lease lost: delivery % of event % is no longer held with fence %', p_ordinal, p_event, p_fence
            using errcode = 'BH001';
    end if;
    insert into boathook.attempt (event_id, ordinal, number, outcome, code, error, worker, started_at, ended_at)
    values (d.event_id, d.ordinal, d.attempts, p_state, null, null, p_worker, p_started, ended);
    insert into boathook.delivery_archive (
        event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays, note, ended_at, item_path, item_type,
        is_manual)
    values (
        d.event_id, d.ordinal, d.recipient, p_state, d.order_key, d.is_replay, d.attempts, d.replays, p_note, ended,
        d.item_path, d.item_type, d.is_manual);
    if d.order_key is not null then
        perform boathook.unblock(d.recipient, d.order_key);
    end if;
end $$;
