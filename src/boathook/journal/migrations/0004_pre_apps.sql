create table boathook.app_revision (
    app text not null check (app <> ''),
    name text not null check (name <> ''),
    sha256 bytea not null,
    applied_at timestamptz not null default now(),
    primary key (app, name)
);

-- Who said, while a delivery was leased, that it need wait no longer; the end of the attempt takes that into account.
alter table boathook.delivery add column woken_by text;

-- Ends an attempt without success: due again at p_due, or dead where that is null. False when the fence no longer holds.
-- An excused attempt is counted, but not against the retry budget. The dead are told of, as a sender may wait for them.
-- Who was woken while the attempt was under way is due at once, and alive with a new budget where it would be dead.
create or replace function boathook.set_back(
    p_event uuid, p_ordinal integer, p_fence bigint, p_due timestamptz, p_outcome text, p_code text, p_error text,
    p_traceback text, p_worker text, p_started timestamptz, p_is_excused boolean default false
) returns boolean language plpgsql as $$
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
        owed_since = case when is_revived then ended else owed_since end,
        died_at = case when p_due is null and not is_revived then ended end,
        lost = case when p_outcome = 'lost' and not is_revived then lost + 1 else 0 end,
        attempts_before = case when is_revived then attempts else attempts_before + p_is_excused::integer end,
        excused = case when is_revived then 0 else excused + p_is_excused::integer end,
        replays = replays + is_revived::integer,
        leased_by = null, lease_until = null, woken_by = null, code = p_code, error = p_error
    where event_id = p_event and ordinal = p_ordinal;
    insert into boathook.attempt (event_id, ordinal, number, outcome, code, error, traceback, worker, started_at, ended_at)
    values (d.event_id, d.ordinal, d.attempts, p_outcome, p_code, p_error, p_traceback, p_worker, p_started, ended);
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
