-- What a request with many items needs: deliveries that name their item.
alter table boathook.delivery
    add column item_path text,
    add column item_type text,
    add constraint an_item_has_a_path_and_a_type check ((item_path is null) = (item_type is null));
alter table boathook.outcome add column item_path text, add column item_type text;
alter table boathook.dedup add column item_path text;

-- What a sender needs who waits for the handler's answer.
create table boathook.reply (
    event_id uuid primary key,
    recipient text not null,
    status smallint not null check (status between 200 and 599),
    content_type text not null,
    body bytea not null,
    made_at timestamptz not null default now()
) partition by range (event_id);
create table boathook.reply_default partition of boathook.reply default;

create or replace function boathook.ensure_partitions(weeks_ahead integer) returns integer language plpgsql as $$
declare
    monday timestamptz;
    parent text;
    child text;
    made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('boathook.ensure_partitions', 0));
    for week in 0 .. weeks_ahead loop
        monday := (date_trunc('week', now() at time zone 'UTC') + make_interval(weeks => week)) at time zone 'UTC';
        foreach parent in array array['event', 'attempt', 'outcome', 'effect', 'reply'] loop
            child := parent || '_' || to_char(monday at time zone 'UTC', 'YYYYMMDD');
            if to_regclass('boathook.' || child) is null then
                execute format(
                    'create table boathook.%I partition of boathook.%I for values from (%L) to (%L)',
                    child, parent, boathook.first_id(monday), boathook.first_id(monday + interval '7 days'));
                made := made + 1;
            end if;
        end loop;
    end loop;
    return made;
end $$;

create or replace function boathook.settle(
    p_event uuid, p_ordinal integer, p_fence bigint, p_state text, p_note text, p_worker text, p_started timestamptz,
    p_mark text default null
) returns void language plpgsql as $$
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
    insert into boathook.outcome (
        event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays, note, ended_at, item_path, item_type)
    values (
        d.event_id, d.ordinal, d.recipient, p_state, d.order_key, d.is_replay, d.attempts, d.replays, p_note, ended,
        d.item_path, d.item_type);
    if d.order_key is not null then
        perform boathook.unblock(d.recipient, d.order_key);
    end if;
end $$;

-- Keeps what a handler answers a sender who waits, the first one's where several do, and tells whoever waits that an
-- attempt has ended; without a status it only tells.
create function boathook.answer(
    p_event uuid, p_recipient text, p_status integer, p_content_type text, p_body bytea
) returns void language plpgsql as $$
begin
    if p_status is not null then
        insert into boathook.reply (event_id, recipient, status, content_type, body)
        values (p_event, p_recipient, p_status, p_content_type, p_body)
        on conflict (event_id) do nothing;
    end if;
    perform pg_notify('boathook_reply', p_event::text);
end $$;

-- An outage that cuts attempts off is not their handler's fault; it has a count of its own.
alter table boathook.delivery add column excused smallint not null default 0 check (excused >= 0);
drop function boathook.set_back(
    uuid, integer, bigint, timestamptz, text, text, text, text, text, timestamptz);

-- Ends an attempt without success: due again at p_due, or dead where that is null. False when the fence no longer holds.
-- An excused attempt is counted, but not against the retry budget. The dead are told of, as a sender may wait for them.
create function boathook.set_back(
    p_event uuid, p_ordinal integer, p_fence bigint, p_due timestamptz, p_outcome text, p_code text, p_error text,
    p_traceback text, p_worker text, p_started timestamptz, p_is_excused boolean default false
) returns boolean language plpgsql as $$
declare
    d boathook.delivery;
    ended timestamptz := clock_timestamp();
begin
    update boathook.delivery
    set state = case when p_due is null then 'dead' else 'pending' end,
        due_at = coalesce(p_due, due_at),
        died_at = case when p_due is null then ended end,
        lost = case when p_outcome = 'lost' then lost + 1 else 0 end,
        attempts_before = attempts_before + p_is_excused::integer,
        excused = excused + p_is_excused::integer,
        leased_by = null, lease_until = null, code = p_code, error = p_error
    where event_id = p_event and ordinal = p_ordinal and fence = p_fence and leased_by is not null
    returning * into d;
    if not found then
        return false;
    end if;
    insert into boathook.attempt (event_id, ordinal, number, outcome, code, error, traceback, worker, started_at, ended_at)
    values (d.event_id, d.ordinal, d.attempts, p_outcome, p_code, p_error, p_traceback, p_worker, p_started, ended);
    if d.state = 'dead' then
        perform pg_notify('boathook_reply', p_event::text);
        if d.order_key is not null then
            perform boathook.unblock(d.recipient, d.order_key);
        end if;
    end if;
    return true;
end $$;

select boathook.ensure_partitions(4);
