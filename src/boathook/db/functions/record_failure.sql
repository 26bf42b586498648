-- Ends an attempt without success: due again at p_due, or dead if that is null. Returns false if the fence no longer
-- holds. A free retry is counted, but not against the retry budget. Dead letters are notified, as a sender may wait for
-- them. A delivery that was woken during the attempt is due immediately, and revived with a new budget instead of
-- dying.
create function boathook.record_failure(
    p_event uuid, p_ordinal integer, p_fence bigint, p_due timestamptz, p_outcome text, p_code text, p_error text,
    p_traceback text, p_worker text, p_started timestamptz, p_is_free boolean default false, p_dependency text default null
) returns boolean language plpgsql set enable_seqscan = off as $$
declare
    d boathook.delivery;
    ended timestamptz := clock_timestamp();
    is_revived boolean;
begin
    select * into d from boathook.delivery
    where event_id = p_event and ordinal = p_ordinal and fence = p_fence and leased_by is not null
    for update;
    if not found then
        return false;
    end if;
    is_revived := p_due is null and d.woken_by is not null;
    update boathook.delivery
    set state = case when p_due is null and not is_revived then 'dead' else 'pending' end,
        due_at = case when d.woken_by is null then coalesce(p_due, due_at) else ended end,
        enqueued_at = case when is_revived then ended else enqueued_at end,
        dead_at = case when p_due is null and not is_revived then ended end,
        crashes = case when p_outcome = 'lost' and not is_revived then crashes + 1 else 0 end,
        attempts_before = case when is_revived then attempts else attempts_before + p_is_free::integer end,
        free_retries = case when is_revived then 0 else free_retries + p_is_free::integer end,
        replays = replays + is_revived::integer,
        leased_by = null, lease_until = null, woken_by = null, code = p_code, error = p_error
    where event_id = p_event and ordinal = p_ordinal;
    insert into boathook.attempt (
        event_id, ordinal, number, outcome, code, error, traceback, worker, started_at, ended_at, dependency)
    values (
        d.event_id, d.ordinal, d.attempts, p_outcome, p_code, p_error, p_traceback, p_worker, p_started, ended,
        p_dependency);
    if is_revived then
        insert into boathook.audit (actor, action, subject)
        values (d.woken_by, 'dead.replay', boathook.show_id('dlv', p_event) || '_' || p_ordinal);
    elsif p_due is null then
        perform pg_notify('boathook_reply', p_event::text);
        if d.order_key is not null then
            perform boathook.unblock(d.recipient, d.order_key);
        end if;
    end if;
    if d.woken_by is not null then
        perform pg_notify('boathook_due', '');
    end if;
    return true;
end $$;
