-- name: create_tables
-- Creates the tables that the demo's handlers write to; no key prevents duplicate effects, so that they can be
-- detected.
create schema demo;
create table demo.effect (
    id bigint generated always as identity primary key,
    event_id uuid not null,
    event_key text not null,
    handler text not null,
    attempt integer not null,
    done_at timestamptz not null default now()
);
create table demo.latest (
    thing text primary key,
    state text not null,
    changes integer not null default 1
);

-- name: count_states
-- Counts deliveries of the demo's own sources and application, not of the other apps, by source and current state.
-- Published events have no source, and deliveries to endpoints are counted separately.
select case when s.recipient like 'endpoint:%' then 'sent' else coalesce(e.source, '') end as source, s.state,
    count(*) as number
from (
    select event_id, recipient, state from boathook.delivery_archive
    union all
    select event_id, recipient, case
        when state = 'dead' then 'dead'
        when attempts - attempts_before > (state = 'leased')::integer then 'retrying'
        else 'waiting'
    end
    from boathook.delivery
) s
join boathook.event e on e.id = s.event_id
where e.source = any($1::text[]) or e.application = any ((select boathook.application_names($2))::text[])
group by 1, 2

-- name: count_published
-- Counts the events that the demo's handlers published.
select count(*) from boathook.event
where origin = 'published' and application = any ((select boathook.application_names($1))::text[])

-- name: count_open
-- Counts open deliveries: all of the demo's own, and of the apps those that are due and not yet attempted. An app may
-- retry on purpose, such as for a payment whose user never registers.
select count(*)
from boathook.delivery d
join boathook.event e on e.id = d.event_id
where d.state <> 'dead'
    and (e.source = any($1::text[]) or e.application = any ((select boathook.application_names($2))::text[])
        or (d.attempts - (d.state = 'leased')::integer = 0 and d.due_at <= now() + interval '1 second'))

-- name: list_received
-- Lists every received event, with its id at the sender.
select source, dedup_key, id, body_sha256 from boathook.event where origin = 'received'

-- name: count_effects
-- Counts effects by the sender's id and handler.
select event_key, handler, count(*) as number from demo.effect group by 1, 2

-- name: count_conflicts
-- Counts, by source and id, requests with a known id and a different body.
select source, dedup_key, sum(seen)::bigint as number from boathook.conflict group by 1, 2

-- name: list_delivered
-- Lists the messages that were delivered to endpoints.
select event_id, recipient from boathook.delivery_archive where recipient like 'endpoint:%' and state = 'succeeded'
