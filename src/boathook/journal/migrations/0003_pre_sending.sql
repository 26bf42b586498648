-- Who is sent to.
create table boathook.application (
    id uuid primary key,
    organization text not null check (organization <> ''),
    uid text,
    name text not null,
    throttle_rate integer check (throttle_rate between 1 and 65535),
    metadata json not null default '{}',
    is_operational boolean not null default false,
    routes_version bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz
);
create unique index application_uid on boathook.application (organization, uid) where uid is not null and deleted_at is null;
create unique index application_operational on boathook.application (organization) where is_operational;
create index application_by_organization on boathook.application (organization, id) where deleted_at is null;

create table boathook.endpoint (
    id uuid primary key,
    application_id uuid not null references boathook.application on delete cascade,
    uid text,
    url text not null,
    description text not null default '',
    event_types text[] check (cardinality(event_types) > 0),
    channels text[] check (cardinality(channels) > 0),
    filter json,
    order_by text,
    throttle_rate integer check (throttle_rate between 1 and 65535),
    concurrency smallint check (concurrency > 0),
    retry_name text,
    retry json,
    timeout_s double precision check (timeout_s > 0),
    metadata json not null default '{}',
    api_version integer not null default 1 check (api_version > 0),
    sealed_headers bytea,
    sealed_auth bytea,
    is_disabled boolean not null default false,
    disabled_because text check (disabled_because in ('manual', 'gone', 'failing')),
    disabled_at timestamptz,
    revision bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    check (is_disabled = (disabled_because is not null and disabled_at is not null))
);
create unique index endpoint_uid on boathook.endpoint (application_id, uid) where uid is not null and deleted_at is null;
create index endpoint_of_application on boathook.endpoint (application_id, id) where deleted_at is null;

create table boathook.endpoint_secret (
    id bigint generated always as identity primary key,
    endpoint_id uuid not null references boathook.endpoint on delete cascade,
    sealed bytea not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz
);
create unique index endpoint_secret_current on boathook.endpoint_secret (endpoint_id) where expires_at is null;
create index endpoint_secret_of_endpoint on boathook.endpoint_secret (endpoint_id, id);

create table boathook.endpoint_health (
    endpoint_id uuid primary key references boathook.endpoint on delete cascade,
    failures integer not null default 0 check (failures >= 0),
    failing_since timestamptz,
    last_failed_at timestamptz,
    open_until timestamptz,
    pauses integer not null default 0 check (pauses >= 0),
    allowed_at timestamptz
) with (fillfactor = 50);

create table boathook.event_type (
    organization text not null check (organization <> ''),
    name text not null,
    description text not null,
    is_archived boolean not null default false,
    is_deprecated boolean not null default false,
    schemas json,
    feature_flags text[],
    group_name text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (organization, name)
);

create table boathook.api_key (
    id uuid primary key,
    token_sha256 bytea not null unique check (octet_length(token_sha256) = 32),
    organization text not null check (organization <> ''),
    application_id uuid references boathook.application on delete cascade,
    name text not null default '',
    is_portal boolean not null default false,
    session_id text,
    capabilities text[],
    feature_flags text[],
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz
);
create index api_key_of_application on boathook.api_key (application_id) where application_id is not null;

create table boathook.idempotency (
    key bytea primary key check (octet_length(key) = 32),
    fingerprint bytea not null check (octet_length(fingerprint) = 32),
    status smallint,
    sealed_response bytea,
    expires_at timestamptz not null
);
create index idempotency_expiry on boathook.idempotency (expires_at);

create table boathook.task (
    id uuid primary key,
    organization text not null check (organization <> ''),
    application_id uuid references boathook.application on delete cascade,
    endpoint_id uuid references boathook.endpoint on delete cascade,
    kind text not null,
    state text not null default 'running' check (state in ('running', 'finished', 'failed')),
    request json not null,
    place json,
    data json not null default '{}',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index task_running on boathook.task (id) where state = 'running';
create index task_of_organization on boathook.task (organization, id);

-- What a message has besides an event.
alter table boathook.event
    add column channels text[],
    add column tags text[],
    add column content_until timestamptz,
    add column expunged_at timestamptz;
create index event_of_application on boathook.event (application, id) where application is not null;
create index event_content on boathook.event (content_until) where content_until is not null and expunged_at is null;
alter table boathook.dedup add column fingerprint bytea;

-- What a delivery asked for by hand, and an attempt made over HTTP, have besides.
alter table boathook.delivery add column is_manual boolean not null default false;
alter table boathook.outcome add column is_manual boolean not null default false;
alter table boathook.attempt
    add column id uuid,
    add column recipient text,
    add column url text,
    add column status smallint,
    add column duration_ms integer,
    add column request_headers json,
    add column response bytea,
    add column is_manual boolean;
create index attempt_of_recipient on boathook.attempt (recipient, id) where id is not null;

-- The endpoint that deliveries to this recipient go to; null where it is no endpoint.
create function boathook.endpoint_of(recipient text) returns uuid language sql immutable strict parallel safe as $$
    select string_agg(lpad(to_hex(substr(bits, 8 + 32 * part, 32)::bit(32)::bigint), 8, '0'), '' order by part)::uuid
    from (
        select string_agg((strpos('0123456789abcdefghjkmnpqrstvwxyz', digit) - 1)::bit(5)::text, '' order by place) as bits
        from regexp_split_to_table(substr(recipient, 13), '') with ordinality as d (digit, place)
    ) as read, generate_series(0, 3) as part
    where recipient ~ '^endpoint:ep_[0-9a-hjkmnp-tv-z]{27}$'
$$;
