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

select boathook.ensure_partitions(4);
