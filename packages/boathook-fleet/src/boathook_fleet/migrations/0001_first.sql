create schema fleet;
-- include: sign_in 1 staff_

-- The parsed content of every event; append-only. The tables below can be rebuilt from it.
create table fleet.change (
    event_id uuid primary key default gen_random_uuid(),
    source text not null,
    entity text not null check (entity in ('car', 'client', 'booking', 'branch', 'employee', 'message')),
    entity_id text not null check (entity_id <> ''),
    action text not null check (action in ('create', 'update', 'delete')),
    stamp timestamptz not null,
    accepted_at timestamptz not null,
    branch text,
    actor text,
    description text not null,
    data jsonb not null,
    before jsonb not null default '{}',     -- the values before, of the fields for which the sender names them
    unparsed jsonb not null default '{}',   -- fields of the event that were not understood; not part of `data`
    is_stamped boolean not null,            -- whether the sender names the time
    -- Whether a change without a stamp of its sender is older than what was applied before it; null: not decided yet.
    is_late boolean,
    branch_id text                          -- that of the change, else that which its object had before
);
create index change_order on fleet.change (entity, entity_id, stamp, accepted_at, event_id);
create index change_branch on fleet.change (branch_id, accepted_at) where source = 'rentprog';
create index change_age on fleet.change (accepted_at);

-- Things with changes that are not applied yet. A transaction that records or applies a change locks the thing's row.
create table fleet.dirty (
    entity text not null,
    entity_id text not null,
    oldest timestamptz not null,        -- the least stamp among the changes to apply
    changes integer not null,
    announced_at timestamptz not null,
    primary key (entity, entity_id)
);

-- Objects of which updates came first: they are fetched from RentProg, and their updates wait until `apply_at`.
create table fleet.fetch (
    entity text not null,
    entity_id text not null,
    requested_at timestamptz not null default now(),
    apply_at timestamptz not null,
    is_overdue boolean not null default false,
    finished_at timestamptz,
    result text check (result in ('ok', 'miss')),
    primary key (entity, entity_id)
);
create index fetch_open on fleet.fetch (apply_at) where finished_at is null;

-- When the next request to RentProg's API may be sent, by kind.
create table fleet.api_rate (
    kind text primary key check (kind in ('read', 'search', 'login')),
    free_at timestamptz not null
);

-- Requests that could not be parsed; the events keep their bytes.
create table fleet.unknown (
    event_id uuid primary key,
    source text not null,
    type text not null,
    reason text not null,
    sample text not null,
    accepted_at timestamptz not null
);
create index unknown_age on fleet.unknown (accepted_at);

-- A row without a stamp is a stub: another object refers to it, and no event about it has arrived.
create table fleet.branches (
    id text primary key,
    name text,
    address text,
    phone text,
    data jsonb not null default '{}',
    unparsed_fields jsonb not null default '{}',
    stamp timestamptz,
    deleted_at timestamptz,
    changes bigint not null default 0,
    upserts bigint not null default 0,
    updated_at timestamptz not null default now()
);
create table fleet.employees (
    id text primary key,
    name text,
    email text,
    phone text,
    role text,
    branch_id text references fleet.branches,
    data jsonb not null default '{}',
    unparsed_fields jsonb not null default '{}',
    stamp timestamptz,
    deleted_at timestamptz,
    changes bigint not null default 0,
    upserts bigint not null default 0,
    updated_at timestamptz not null default now()
);
create table fleet.cars (
    id text primary key,
    number text,
    model text,
    vin text,
    state text,
    mileage bigint,
    branch_id text references fleet.branches,
    data jsonb not null default '{}',
    unparsed_fields jsonb not null default '{}',
    stamp timestamptz,
    deleted_at timestamptz,
    changes bigint not null default 0,
    upserts bigint not null default 0,
    updated_at timestamptz not null default now()
);
create table fleet.clients (
    id text primary key,
    name text,
    phone text,
    email text,
    state text,
    branch_id text references fleet.branches,
    data jsonb not null default '{}',
    unparsed_fields jsonb not null default '{}',
    stamp timestamptz,
    deleted_at timestamptz,
    changes bigint not null default 0,
    upserts bigint not null default 0,
    updated_at timestamptz not null default now()
);
create table fleet.bookings (
    id text primary key,
    state text,
    starts_at timestamptz,
    ends_at timestamptz,
    price numeric(14, 2),
    currency text,
    car_id text references fleet.cars,
    client_id text references fleet.clients,
    employee_id text references fleet.employees,
    branch_id text references fleet.branches,
    late_reported_for timestamptz,          -- the end of the booking for which it was reported late
    data jsonb not null default '{}',
    unparsed_fields jsonb not null default '{}',
    stamp timestamptz,
    deleted_at timestamptz,
    changes bigint not null default 0,
    upserts bigint not null default 0,
    updated_at timestamptz not null default now()
);
create index bookings_car on fleet.bookings (car_id, starts_at);
create index bookings_end on fleet.bookings (ends_at) where deleted_at is null;
create index bookings_client on fleet.bookings (client_id);
create table fleet.messages (
    id text primary key,
    lead_id text,
    sender text,
    text text,
    sent_at timestamptz,
    data jsonb not null default '{}',
    unparsed_fields jsonb not null default '{}',
    stamp timestamptz,
    deleted_at timestamptz,
    changes bigint not null default 0,
    upserts bigint not null default 0,
    updated_at timestamptz not null default now()
);

-- Fields that were not understood are listed.
create index branches_unparsed on fleet.branches (updated_at) where unparsed_fields <> '{}';
create index employees_unparsed on fleet.employees (updated_at) where unparsed_fields <> '{}';
create index cars_unparsed on fleet.cars (updated_at) where unparsed_fields <> '{}';
create index clients_unparsed on fleet.clients (updated_at) where unparsed_fields <> '{}';
create index bookings_unparsed on fleet.bookings (updated_at) where unparsed_fields <> '{}';
create index messages_unparsed on fleet.messages (updated_at) where unparsed_fields <> '{}';

-- The latest change of each thing, numbered in commit order: a client that has seen one number has seen all lower ones.
create sequence fleet.feed_version;
create table fleet.feed (
    entity text not null,
    entity_id text not null,
    version bigint not null unique,
    action text not null,
    at timestamptz not null,
    branch text,
    actor text,
    description text not null,
    primary key (entity, entity_id)
);

create table fleet.error_log (
    id bigint generated always as identity primary key,
    created_at timestamptz not null default now(),
    phase text not null check (phase in ('ack', 'parse', 'normalise', 'upsert', 'fetch', 'live', 'replay')),
    kind text not null check (kind in ('err', 'warn', 'dry_run')),
    code text not null,
    error text not null,
    number bigint not null default 1,
    payload jsonb,                          -- what was handled; null if there is no body, as for a refused request
    meta jsonb not null default '{}',
    event_id uuid,
    entity text,
    entity_id text
);
create index error_log_age on fleet.error_log (created_at);
create index error_log_phase on fleet.error_log (phase, kind, created_at);
create index error_log_kind on fleet.error_log (kind, created_at);

-- The request after which an object is written, by the event that announces it; the writing deletes the row, so that
-- only pending and dead letters have one.
create table fleet.announced (
    event_id uuid primary key,
    source_event_id uuid not null,
    source text not null,
    type text not null,
    payload jsonb not null,
    announced_at timestamptz not null default now()
);
create index announced_age on fleet.announced (announced_at);

-- Dead letters and when they are tried again by themselves; a row without `next_at` is not, or is under way.
create table fleet.dead_retry (
    delivery_id text primary key,
    recipient text not null,
    replays integer not null default 0,
    next_at timestamptz,
    first_seen_at timestamptz not null default now(),
    last_seen_at timestamptz not null default now(),
    given_up_at timestamptz
);
create index dead_retry_due on fleet.dead_retry (next_at) where next_at is not null;

-- Since when the webhooks of a branch are watched.
create table fleet.branch_watch (
    branch_id text primary key,
    since timestamptz not null default now()
);

-- The rows that `boathook fleet import` has brought, by their own keys.
-- include: boathook_app_tools.imported_row 1

-- Events and dead letters of the system before this one; `document` is the whole row.
create table fleet.imported_events (
    id text primary key,
    received_at timestamptz not null,
    entity text,
    action text,
    branch text,
    actor_id text,
    description text,
    document jsonb not null
);
create index imported_events_age on fleet.imported_events (received_at);
create table fleet.imported_dead (
    id text primary key,
    created_at timestamptz not null,
    payload jsonb,
    error text,
    status text,
    event_id text,
    event_name text,
    retry_count integer,
    last_retry_at timestamptz,
    document jsonb not null
);
create index imported_dead_age on fleet.imported_dead (created_at);
create index imported_dead_status on fleet.imported_dead (status);

-- A body as JSON, or null if it is none.
create function fleet.body_json(body bytea) returns jsonb language plpgsql immutable as $$
begin
    return convert_from(body, 'UTF8')::jsonb;
exception when others then
    return null;
end $$;

-- An id as boathook shows it: a prefix, and 128 bits in Crockford's base 32.
create function fleet.public_id(prefix text, id uuid) returns text language sql immutable strict as $$
    select prefix || '_' || string_agg(
        substr(
            '0123456789abcdefghjkmnpqrstvwxyz',
            substring(B'0000000' || ('x' || replace(id::text, '-', ''))::bit(128) from 5 * place + 1 for 5)::integer + 1,
            1
        ), '' order by place
    )
    from generate_series(0, 26) as place
$$;

-- A delivery's: that of its event, and the place among its deliveries.
create function fleet.delivery_id(event_id uuid, ordinal integer) returns text language sql immutable strict as $$
    select fleet.public_id('dlv', event_id) || '_' || ordinal
$$;
