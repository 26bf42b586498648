-- Ends an attempt after which its delivery waits for a key until p_until at the latest; without p_until it is ignored,
-- with the note. Returns false if the fence no longer holds. Waiting costs no attempt. If a signal was committed since
-- the delivery last looked for one, or ever where it waits for the first time, the handler may have missed what came, so
-- the delivery is due at once. This happens once for each signal, because `snapshot` tells which ones were seen.
create function boathook.record_wait(
    p_event uuid, p_ordinal integer, p_fence bigint, p_key text, p_until timestamptz, p_code text, p_note text,
    p_worker text, p_started timestamptz
) returns boolean language plpgsql set enable_seqscan = off as $$
declare
    d boathook.delivery;
    ended timestamptz := clock_timestamp();
    seen pg_snapshot;
    is_signalled boolean;
begin
    select * into d from boathook.delivery
    where event_id = p_event and ordinal = p_ordinal and fence = p_fence and leased_by is not null
    for update;
    if not found then
        return false;
    end if;
    if p_until is null then
        perform boathook.settle(p_event, p_ordinal, p_fence, 'ignored', p_note, p_worker, p_started);
        return true;
    end if;
    select pg_current_snapshot(), exists (
        select from boathook.wait_signal s
        where s.key = p_key and s.xid is distinct from w.woken_by
            and not coalesce(w.key = p_key and pg_visible_in_snapshot(s.xid, w.snapshot), false))
    into seen, is_signalled
    from (values (1)) as v left join boathook.delivery_wait w on w.event_id = p_event and w.ordinal = p_ordinal;
    insert into boathook.delivery_wait (event_id, ordinal, key, attempts, snapshot)
    values (p_event, p_ordinal, p_key, d.attempts, seen)
    on conflict (event_id, ordinal) do update set
        key = excluded.key, attempts = excluded.attempts, snapshot = excluded.snapshot, woken_by = null, is_matched = false;
    update boathook.delivery
    set state = 'pending', (due_at, enqueued_at) = (
            select t.due, t.due from (
                select case when is_signalled or d.woken_by is not null then ended else p_until end as due) as t),
        attempts_before = attempts, free_retries = 0, crashes = 0,
        leased_by = null, lease_until = null, woken_by = null, code = p_code, error = p_note
    where event_id = p_event and ordinal = p_ordinal;
    insert into boathook.attempt (event_id, ordinal, number, outcome, code, error, worker, started_at, ended_at)
    values (d.event_id, d.ordinal, d.attempts, 'waiting', p_code, p_note, p_worker, p_started, ended);
    return true;
end $$;
