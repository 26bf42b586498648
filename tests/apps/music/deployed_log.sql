-- The log as the system's public migration makes it, which differs from its document: an id of its own, no headers, and
-- other words. Written from https://github.com/HOW2AI-AGENCY/albert3-muse-synth-studio,
-- supabase/migrations/20251106000001_webhook_idempotency.sql, read 2026-11-28.
drop table {schema}.webhook_delivery_log;
create table {schema}.webhook_delivery_log (
    id uuid primary key default gen_random_uuid(),
    webhook_id text unique not null,
    provider text not null check (provider in ('suno', 'mureka', 'replicate', 'other')),
    task_id text not null,
    track_id uuid references {schema}.tracks (id) on delete cascade,
    status text not null default 'processing' check (status in ('processing', 'completed', 'failed')),
    processed_at timestamptz default now(),
    payload jsonb,
    error_message text,
    retry_count int default 0,
    created_at timestamptz default now(),
    updated_at timestamptz default now()
);
