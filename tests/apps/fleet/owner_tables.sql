-- The tables of the car rental before this one. Its report lists the columns of rentprog_webhook_events (1.2.5, 3.3) and
-- rentprog_webhook_dead (1.2.7), without DDL; this is written from these lists. Of rentprog_cars, rentprog_clients and
-- rentprog_bookings it gives the names only; their columns here are examples, and the import needs none but id.
create table {schema}.rentprog_cars (
    id bigint primary key,
    number text,
    model text,
    mileage integer,
    state text,
    company_id integer,
    updated_at timestamptz
);
create table {schema}.rentprog_clients (
    id bigint primary key,
    fio text,
    phone text
);
create table {schema}.rentprog_bookings (
    id bigint primary key,
    state text,
    start_date timestamptz,
    end_date timestamptz,
    total numeric,
    car_id bigint,
    client_id bigint,
    updated_at timestamptz
);
create table {schema}.rentprog_webhook_events (
    id bigserial primary key,
    received_at timestamptz default now(),
    entity text,
    action text,
    branch text,
    actor_id text,
    description text,
    payload jsonb
);
create index idx_rentprog_webhook_events_received_at on {schema}.rentprog_webhook_events (received_at);
create table {schema}.rentprog_webhook_dead (
    id bigserial primary key,
    created_at timestamptz default now(),
    payload jsonb,
    error text,
    status text,
    event_id text,
    event_name text,
    retry_count integer default 0,
    last_retry_at timestamptz
);
create index idx_rentprog_webhook_dead_created_at on {schema}.rentprog_webhook_dead (created_at);
create index idx_rentprog_webhook_dead_status on {schema}.rentprog_webhook_dead (status);
