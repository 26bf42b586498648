create schema music;

create table music.track (
    task_id text primary key check (length(task_id) between 1 and 200),
    owner text not null default '',
    title text not null default '',
    prompt jsonb not null default '{}',
    status text not null default 'pending'
        check (status in ('pending', 'text', 'first', 'complete', 'failed', 'deleted')),
    error_code text,
    error text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    completed_at timestamptz,
    archived_at timestamptz,
    owner_id uuid,
    expected_since timestamptz default now(),
    asks integer not null default 0,
    asked_at timestamptz,
    ask_error text,
    application text not null default ''
        check (length(application) <= 256 and application ~ '^[A-Za-z0-9_.-]*$' and application !~ '^(app_.*|[.]{1,2}|music)$'),
    announced text check (announced in ('ready', 'failed'))
);
comment on column music.track.application is 'The application to whose endpoints its events are sent; empty: that of the settings.';
comment on column music.track.announced is 'The last event that was sent: track.ready or track.failed.';
comment on column music.track.expected_since is 'The last news, while more is expected: the song is unfinished, or complete without any clip.';
comment on column music.track.asks is 'How often the reseller was asked since then.';
comment on column music.track.archived_at is 'Since when cleaning keeps its files and nothing is asked for it.';
comment on column music.track.owner_id is 'Its id in the owner''s own table, if it was imported.';
comment on table music.track is
    'Songs that were ordered, by the task''s id. A row may also be inserted by plain SQL: what waits for it follows.';
create index track_created on music.track (created_at);
create index track_expected on music.track (expected_since) where expected_since is not null;

-- One row for each callback and task it speaks of. Not tied to music.track: callbacks may come before it.
create table music.callback (
    event_id uuid not null,
    task_id text not null,
    delivery_id text not null,
    stage text not null check (stage in ('text', 'first', 'complete', 'error', 'unknown')),
    code integer,
    message text not null,
    clips jsonb not null,
    state text not null check (state in ('waiting', 'applied', 'late')),
    note text not null default '',
    received_at timestamptz not null,
    applied_at timestamptz,
    primary key (event_id, task_id)
);
create index callback_waiting on music.callback (task_id, received_at) where state = 'waiting';
create index callback_received on music.callback (received_at);
create index callback_delivery on music.callback (delivery_id);

create table music.clip (
    task_id text not null references music.track on delete cascade,
    clip_id text not null,
    position integer not null,
    title text not null,
    duration_s numeric,
    primary key (task_id, clip_id)
);

create table music.file (
    task_id text not null,
    clip_id text not null,
    kind text not null check (kind in ('audio', 'cover')),
    url text not null,
    stem text not null,
    state text not null default 'wanted' check (state in ('wanted', 'retrying', 'stored', 'failed', 'missing', 'removed')),
    round integer not null default 1,
    key text,
    size bigint,
    sha256 text,
    content_type text,
    error_code text,
    error text,
    wanted_at timestamptz not null default now(),
    stored_at timestamptz,
    primary key (task_id, clip_id, kind),
    foreign key (task_id, clip_id) references music.clip on delete cascade,
    check ((state = 'stored') <= (key is not null and size is not null and sha256 is not null))
);
comment on column music.file.stem is 'The object''s name without its extension, which follows from what the file is.';
comment on column music.file.round is 'How often it was wanted: it is wanted again under a fresh address, or when its object is gone.';
-- By bytes, as object storage lists its keys.
create unique index file_key on music.file (key collate "C") where key is not null;
create index file_stem on music.file (stem);
create index file_open on music.file (state) where state in ('wanted', 'retrying', 'failed', 'missing');

create table music.cleaning (
    started_at timestamptz primary key,
    ended_at timestamptz,
    report jsonb
);

create table music.credit (
    is_only boolean primary key default true check (is_only),
    asked_at timestamptz not null,
    credits bigint,
    read_at timestamptz,
    error text
);
comment on table music.credit is 'What the reseller last said about the account''s credits.';

create table music.link_key (
    is_only boolean primary key default true check (is_only),
    key bytea not null
);
comment on table music.link_key is 'The key that signs links to files in a folder. Deleting it ends all links; the next one makes another.';

-- include: boathook_app_tools.imported_row 1
comment on table music.imported_row is 'The rows that `boathook music import` has brought, by their own keys.';

create table music.webhook_log (
    webhook_id text primary key,
    status text not null check (status in ('registered', 'completed', 'failed')),
    headers jsonb,
    payload jsonb,
    reason text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
comment on table music.webhook_log is
    'Webhooks of the system before this one, and those that programs register by the SQL functions of `boathook music views create`.';
create index webhook_log_ended on music.webhook_log (updated_at) where status = 'completed';

create function music.body_json(body bytea) returns jsonb language plpgsql immutable as $$
begin
    return convert_from(body, 'UTF8')::jsonb;
exception when others then
    return null;
end $$;
comment on function music.body_json is 'A body as JSON, or null if it is none.';
