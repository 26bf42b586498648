-- The tables of the payment system before this one. Its document lists columns, types, keys and indexes, without DDL;
-- this is written from these lists. {user_id} is uuid there; systems with numbers as ids are covered, too.
create type {schema}.subscription_status as enum ('INACTIVE', 'ACTIVE', 'CANCELED');
create type {schema}.payment_status as enum ('RECEIVED', 'SUCCEEDED', 'FAILED', 'REFUNDED');
create type {schema}.webhook_status as enum (
    'RECEIVED', 'VALIDATED', 'PROCESSED', 'IGNORED', 'FAILED_RETRYABLE', 'FAILED_FINAL');
create table {schema}.users (
    id {user_id} primary key,
    email text not null unique,
    created_at timestamptz,
    updated_at timestamptz
);
create table {schema}.subscriptions (
    id uuid primary key,
    user_id {user_id} unique references {schema}.users (id),
    status {schema}.subscription_status,
    current_period_end timestamptz,
    created_at timestamptz,
    updated_at timestamptz
);
create index on {schema}.subscriptions (status, current_period_end);
create table {schema}.payments (
    id uuid primary key,
    provider text,
    external_payment_id text,
    user_id {user_id} references {schema}.users (id),
    email text,
    amount decimal(12,2),
    currency text,
    status {schema}.payment_status,
    paid_at timestamptz,
    subscription_applied_at timestamptz,
    subscription_id uuid,
    created_at timestamptz,
    unique (provider, external_payment_id)
);
create index on {schema}.payments (user_id, created_at desc);
create index on {schema}.payments (status);
create index on {schema}.payments (email);
create table {schema}.webhook_events (
    id uuid primary key,
    provider text,
    external_event_id text,
    external_payment_id text,
    payload jsonb,
    payload_hash text,
    signature_valid boolean,
    status {schema}.webhook_status,
    received_at timestamptz,
    processed_at timestamptz,
    error_code text,
    error_message text,
    unique (provider, payload_hash)
);
create unique index on {schema}.webhook_events (provider, external_event_id) where external_event_id is not null;
create index on {schema}.webhook_events (external_payment_id);
create index on {schema}.webhook_events (status, received_at);
