-- The tables of the music system before this one. Its document lists the columns of webhook_delivery_log, and names
-- tracks without columns. Those of tracks are written from the system's first public migration:
-- https://github.com/HOW2AI-AGENCY/albert3-muse-synth-studio, supabase/migrations/20251002062819_*.sql, with suno_id of
-- later ones, read 2026-11-28; archived_at is what its document recommends.
create table {schema}.tracks (
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null,
    title text not null,
    prompt text not null,
    improved_prompt text,
    audio_url text,
    duration integer,
    status text not null default 'pending',
    error_message text,
    metadata jsonb default '{}',
    suno_id text,
    archived_at timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create table {schema}.webhook_delivery_log (
    webhook_id text primary key,
    status text not null check (status in ('registered', 'completed', 'failed')),
    headers jsonb,
    payload jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
