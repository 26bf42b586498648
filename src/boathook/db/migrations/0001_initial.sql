-- boathook's database schema, for PostgreSQL 14 or later.
--
-- The tables, in the order of the data flow:
--   route, route_version   which recipient gets which events; the version increases with every change
--   cell_assignment, cell_name   the cell of each source, and the one that this database belongs to
--   dedup                  keys of known events, until they expire
--   event                  one accepted fact, immutable                      (partitioned by id)
--   event_cause            the delivery whose handler published an event     (partitioned by event id)
--   unhandled              events without deliveries, because no handler matched
--   delivery_wait, wait_signal   what pending deliveries wait for, and the latest signals that it has come
--   delivery               the queue: pending and leased deliveries, and dead letters
--   attempt                one try of a delivery                             (partitioned by event id)
--   delivery_archive       deliveries that succeeded or were ignored         (partitioned by event id)
--   side_effect, entity_version   results and versions that handlers store
--   reply                  a handler's reply to a waiting sender             (partitioned by event id)
--   conflict, rejection    requests that did not become an event, stored for inspection
--   audit, audit_head      operator actions, and the last seal on them
--   purge_log              what was deleted, and how many rows
--   application, endpoint, endpoint_secret, event_type   tenants, their endpoints and secrets, and message types
--   endpoint_health        an endpoint's consecutive failures, circuit breaker and rate limit
--   api_key, idempotency, task   API keys, stored API responses, and background tasks
--   operator, operator_session, saved_view   users of the console, their sessions, and the searches they have saved
--   operator_token         bearer tokens of operators for the API
--   source                 sources that operators have added, with encrypted settings
--   source_secret          secrets of sources that operators have added, encrypted
--   buffer_mark            how far each series of batches from the brokers has arrived
--   source_rate            how much of each source's rate is leased to gateways
--   migration              applied migrations, boathook's own and those of apps
--   alert, alert_notification, alert_channel, alert_silence   alerts, their notifications, channel states, and silences
--   alert_signal, alert_burst   alerts that apps fire, and how often
--   alert_evaluation       the results of the latest rule evaluation
--   metric_sample          metrics of each host, recent ones in finer steps than older ones
--
-- A delivery is identified by its event and an ordinal: 0 to event.fanout - 1 for those created when the event was
-- accepted, higher ones for replays. A delivery that succeeds or is ignored is moved from `delivery` to
-- `delivery_archive`, so the queue stays small however long the history grows.
--
-- A request with several items (a batch) is one event with its exact bytes. Each of its deliveries covers one item,
-- which is identified by its path in the JSON body. The dedup table then has a key for each item and none for the whole
-- event; its body_sha256 is the hash of the item.
--
-- Ids are UUIDv7, so a range of ids is a range of time: partitions are bounded by id, and dropping a week
-- drops its events with all their rows.
--
-- Two rules define the lock order: `delivery` rows are locked before anything else is written, and
-- several of them only with SKIP LOCKED or in key order.

create schema if not exists boathook;

create table boathook.route_version (
    singleton boolean primary key default true check (singleton),
    version bigint not null default 1
);
insert into boathook.route_version default values;

create table boathook.route (
    recipient text not null check (recipient <> ''),
    position smallint not null check (position >= 0),
    app text not null,
    source text,
    application text,
    types text[] not null check (cardinality(types) > 0),
    filter jsonb,
    order_by text,
    policy jsonb not null,
    timeout_s double precision not null check (timeout_s > 0),
    is_active boolean not null default true,
    changed_at timestamptz not null default now(),
    primary key (recipient, position),
    check (source is null or application is null)
);

create function boathook.raise_route_version() returns trigger language plpgsql as $$
begin
    update boathook.route_version set version = version + 1;
    return null;
end $$;

create trigger route_changed after insert or update or delete on boathook.route
    for each statement execute function boathook.raise_route_version();

-- The cell that each source was assigned to. A change raises the routes' version, so no gateway stores an event of a
-- source that has moved to another cell.
create table boathook.cell_assignment (
    source text primary key check (source <> ''),
    cell text not null check (cell <> ''),
    revision bigint not null check (revision > 0),
    assigned_at timestamptz not null default now()
);
create trigger assignment_changed after insert or update or delete on boathook.cell_assignment
    for each row execute function boathook.raise_route_version();

-- The name of the cell that this database belongs to, if there are several.
create table boathook.cell_name (
    singleton boolean primary key default true check (singleton),
    name text not null check (name <> '')
);

create table boathook.dedup (
    key uuid primary key,
    replay_key uuid,
    event_id uuid not null,
    body_sha256 bytea not null check (octet_length(body_sha256) = 32),
    expires_at timestamptz not null,
    item_path text,
    request_sha256 bytea,
    -- The cell that stores the event, if another one does.
    cell text,
    -- Of a source with `dedup_object`: `key` identifies the object, and this is the key of its newest event.
    newest_key uuid
);
-- For a message, the hash of its idempotency key. For an event, that of its signed body, if its id is not signed: only the
-- first event with a body holds it, so that the index decides which is the first, for any number of gateways.
create unique index dedup_replay_key on boathook.dedup (replay_key) where replay_key is not null;
-- Rows are stored roughly in the order of their events, and a page that becomes free fills with rows of one time. The
-- index therefore finds the pages with the keys of a range of events. It keeps several id spans for each range of
-- pages, because a single span from the first to the last id becomes useless once keys have been deleted and replaced.
create index dedup_order on boathook.dedup using brin (expires_at, event_id uuid_minmax_multi_ops) with (autosummarize = on);

create table boathook.event (
    id uuid primary key,
    source text,
    application text,
    type text not null,
    dedup_key text not null,
    grade text not null check (grade in ('body signed', 'metadata only', 'token', 'address', 'none')),
    origin text not null check (origin in ('received', 'published', 'accepted_conflict')),
    accepted_at timestamptz not null default now(),
    headers json not null,
    content_type text not null,
    body bytea not null,
    body_sha256 bytea not null check (octet_length(body_sha256) = 32),
    fanout smallint not null check (fanout >= 0),
    channels text[],
    tags text[],
    deliver_at timestamptz,
    content_until timestamptz,
    expunged_at timestamptz,
    -- For a batch: path and type of each item that was new, whether a handler matched it or not. The default means that
    -- it is unknown whether the event is a batch.
    items json default '[]',
    -- The first event with the same signed body, which came under another id.
    same_body_as uuid,
    -- The cell that the application of a message had moved to when it was published here. Null if the deliveries of
    -- its recipients are here, also because the application has come back.
    cell text,
    check (origin <> 'received' or source is not null),
    check (source is null or application is null)
) partition by range (id);
-- Without lz4, bodies above 2 kB would be compressed by pglz, at up to four times the processor time of storing them.
do $$ begin
    if not exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals)) then
        alter table boathook.event alter column body set storage external;
    end if;
end $$;
create table boathook.event_default partition of boathook.event default;
create index event_of_application on boathook.event (application, id) where application is not null;
create index event_repeated on boathook.event (id) where same_body_as is not null;
create index event_content on boathook.event (content_until) where content_until is not null and expunged_at is null;

-- Of an event that a handler published: the delivery that it handled, whose event is the cause, and the first event of the
-- chain, which has no cause itself.
create table boathook.event_cause (
    event_id uuid primary key,
    cause_id uuid not null,
    cause_ordinal smallint not null,
    first_id uuid not null
) partition by range (event_id);
create table boathook.event_cause_default partition of boathook.event_cause default;

-- Events of sources, and messages to names that no application has, without deliveries because no handler matched. A row
-- is deleted when its event is rerouted, or when it reaches the retention age of events.
create table boathook.unhandled (
    event_id uuid primary key,
    subject text not null  -- the source, or the name
);

create table boathook.delivery (
    event_id uuid not null,
    ordinal smallint not null check (ordinal >= 0),
    recipient text not null,
    state text not null default 'pending' check (state in ('pending', 'leased', 'dead')),
    seq bigint generated always as identity,
    order_key text,
    is_blocked boolean not null default false,
    is_replay boolean not null default false,
    enqueued_at timestamptz not null default now(),
    due_at timestamptz not null default now(),
    attempts integer not null default 0 check (attempts >= 0),
    attempts_before integer not null default 0,
    crashes smallint not null default 0 check (crashes >= 0),
    replays smallint not null default 0 check (replays >= 0),
    fence bigint not null default 0 check (fence >= 0),
    leased_by text,
    lease_until timestamptz,
    code text,
    error text,
    dead_at timestamptz,
    item_path text,
    item_type text,
    free_retries smallint not null default 0 check (free_retries >= 0),
    is_manual boolean not null default false,
    -- Who made it due while it was leased; the end of the attempt takes that into account.
    woken_by text,
    primary key (event_id, ordinal),
    constraint delivery_lease_complete check ((state = 'leased') = (leased_by is not null and lease_until is not null)),
    constraint delivery_lease_counted check (state <> 'leased' or (attempts > attempts_before and fence > 0)),
    constraint delivery_dead_complete check ((state = 'dead') = (dead_at is not null) and (state <> 'dead' or code is not null)),
    constraint delivery_blocked_is_ordered check (not is_blocked or (state = 'pending' and order_key is not null)),
    constraint delivery_attempts_before_in_range check (attempts_before between 0 and attempts),
    constraint delivery_item_complete check ((item_path is null) = (item_type is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- Used by every claim (`lease_due`) and by `list_due`.
create index delivery_due on boathook.delivery (recipient, due_at) where state = 'pending' and not is_blocked;
-- Suspects are rare, and queried at every notification; this index avoids a scan of all due deliveries.
create index delivery_suspect on boathook.delivery (recipient, due_at) where state = 'pending' and not is_blocked and crashes >= 2;
create index delivery_leased on boathook.delivery (lease_until) where state = 'leased';
create index delivery_dead on boathook.delivery (recipient, dead_at) where state = 'dead';
create index delivery_order on boathook.delivery (recipient, order_key, seq) where order_key is not null and state <> 'dead';
-- Two leases with one order key cannot exist, whatever the race.
create unique index delivery_one_lease_per_order_key on boathook.delivery (recipient, order_key)
    where state = 'leased' and order_key is not null;

-- What a pending delivery waits for. A row is deleted some time after its delivery has ended.
create table boathook.delivery_wait (
    event_id uuid not null,
    ordinal smallint not null,
    key text not null,
    -- The attempts until then: with another one it no longer waits.
    attempts integer not null,
    -- What was committed when signals were looked for; see boathook.record_wait.
    snapshot pg_snapshot not null,
    -- The transaction whose signal woke it last: an attempt that follows has seen what it wrote.
    woken_by xid8,
    -- Whether signals that were committed until later were compared with it, too.
    is_matched boolean not null default false,
    primary key (event_id, ordinal)
);
create index delivery_wait_key on boathook.delivery_wait (key);
create index delivery_wait_to_match on boathook.delivery_wait (event_id, ordinal) where not is_matched;

-- Signals of the last hour that something has come for which deliveries wait.
create table boathook.wait_signal (
    id bigint generated always as identity primary key,
    key text not null check (key <> ''),
    xid xid8 not null default pg_current_xact_id(),
    at timestamptz not null default clock_timestamp(),
    -- Whether it was compared with the waits that were committed until later.
    is_matched boolean not null default false
);
create index wait_signal_key on boathook.wait_signal (key);
create index wait_signal_to_match on boathook.wait_signal (id) where not is_matched;

create table boathook.attempt (
    event_id uuid not null,
    ordinal smallint not null,
    number integer not null check (number > 0),
    outcome text not null check (outcome in ('succeeded', 'ignored', 'retry', 'waiting', 'failed', 'dead', 'lost')),
    code text,
    error text,
    traceback text,
    worker text not null,
    started_at timestamptz not null,
    ended_at timestamptz not null,
    id uuid,
    recipient text,
    url text,
    status smallint,
    duration_ms integer,
    request_headers json,
    response bytea,
    is_manual boolean,
    dependency text,  -- of a handler: the service that failed
    primary key (event_id, ordinal, number)
) partition by range (event_id);
create table boathook.attempt_default partition of boathook.attempt default;
create index attempt_of_recipient on boathook.attempt (recipient, id) where id is not null;

create table boathook.delivery_archive (
    event_id uuid not null,
    ordinal smallint not null,
    recipient text not null,
    state text not null check (state in ('succeeded', 'ignored')),
    order_key text,
    is_replay boolean not null,
    attempts integer not null check (attempts > 0 or state = 'ignored'),
    replays smallint not null,
    note text,
    ended_at timestamptz not null,
    item_path text,
    item_type text,
    is_manual boolean not null default false,
    primary key (event_id, ordinal),
    check (state <> 'ignored' or note is not null)
) partition by range (event_id);
create table boathook.delivery_archive_default partition of boathook.delivery_archive default;

create table boathook.side_effect (
    event_id uuid not null,
    recipient text not null,
    name text not null,
    result json not null,
    done_at timestamptz not null default now(),
    primary key (event_id, recipient, name)
) partition by range (event_id);
create table boathook.side_effect_default partition of boathook.side_effect default;

create table boathook.reply (
    event_id uuid primary key,
    recipient text not null,
    status smallint not null check (status between 200 and 599),
    content_type text not null,
    body bytea not null,
    created_at timestamptz not null default now()
) partition by range (event_id);
create table boathook.reply_default partition of boathook.reply default;

create table boathook.entity_version (
    recipient text not null,
    kind text not null,
    key text not null,
    stamp numeric not null,
    event_id uuid not null,
    primary key (recipient, kind, key)
);

create table boathook.conflict (
    id uuid primary key,
    event_id uuid not null,
    source text,
    application text,
    dedup_key text not null,
    type text not null,
    grade text not null,
    differs text not null check (differs in ('body', 'key')),
    headers json not null,
    content_type text not null,
    body bytea not null,
    body_sha256 bytea not null,
    channels text[],
    tags text[],
    content_until timestamptz,
    -- The event that it became when an operator accepted it.
    accepted_as uuid,
    seen integer not null default 1 check (seen > 0),
    last_seen_at timestamptz not null default now(),
    unique (event_id, differs, dedup_key, body_sha256)
);
create index conflict_by_cause on boathook.conflict (coalesce(source, ''), coalesce(application, ''), differs, id);

create table boathook.rejection (
    id uuid primary key,
    -- Empty if no source is at the path of the request.
    source text not null,
    status smallint not null,
    reason text not null,
    detail text not null,
    client_address text not null,
    method text not null,
    url text not null,
    headers json not null,
    content_type text not null,
    body bytea not null,
    body_size bigint not null,
    event_id uuid
);
create index rejection_by_source on boathook.rejection (source, id);
create index rejection_by_cause on boathook.rejection (source, reason, id) where event_id is null;

create table boathook.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default now(),
    actor text not null,
    action text not null,
    subject text not null,
    note text,
    -- The row's position in the chain, and the hash of the previous seal with its content; see boathook.seal_audit.
    sealed_as bigint,
    seal bytea,
    constraint audit_seal_complete check ((sealed_as is null) = (seal is null))
);
create index audit_by_subject on boathook.audit (subject, id);
create unique index audit_sealed on boathook.audit (sealed_as) where sealed_as is not null;
create index audit_to_seal on boathook.audit (id) where sealed_as is null;
create index audit_by_time on boathook.audit (at, id);

-- The last seal, in a single row: without it, rows removed from the end of the chain would not be detected.
create table boathook.audit_head (
    singleton boolean primary key default true check (singleton),
    place bigint not null,
    seal bytea not null
);

create table boathook.purge_log (
    id bigint generated always as identity primary key,
    at timestamptz not null default now(),
    kind text not null,
    reason text not null,
    dropped bigint not null check (dropped >= 0)
);

create table boathook.application (
    id uuid primary key,
    organization text not null check (organization <> ''),
    uid text,
    -- Its id on the server that it was imported from.
    imported_id text,
    name text not null,
    throttle_rate integer check (throttle_rate between 1 and 65535),
    metadata json not null default '{}',
    is_operational boolean not null default false,
    -- The cell that it has moved to; null if it is here. Its messages and endpoints of before stay.
    cell text check (cell <> ''),
    routes_version bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz
);
create unique index application_uid on boathook.application (organization, uid) where uid is not null and deleted_at is null;
create unique index application_imported on boathook.application (organization, imported_id)
    where imported_id is not null and deleted_at is null;
create unique index application_operational on boathook.application (organization) where is_operational;
create index application_by_organization on boathook.application (organization, id) where deleted_at is null;

create table boathook.endpoint (
    id uuid primary key,
    application_id uuid not null references boathook.application on delete cascade,
    uid text,
    -- Its id on the server that it was imported from.
    imported_id text,
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
    encrypted_headers bytea,
    encrypted_auth bytea,
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
create unique index endpoint_imported on boathook.endpoint (application_id, imported_id)
    where imported_id is not null and deleted_at is null;
create index endpoint_of_application on boathook.endpoint (application_id, id) where deleted_at is null;

create table boathook.endpoint_secret (
    id bigint generated always as identity primary key,
    endpoint_id uuid not null references boathook.endpoint on delete cascade,
    encrypted bytea not null,
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
    mount text,
    mount_role text check (mount_role in ('reader', 'operator')),
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    check ((mount is null) = (mount_role is null)),
    check (mount is null or (application_id is null and capabilities is null and not is_portal))
);
create index api_key_of_application on boathook.api_key (application_id) where application_id is not null;
create index api_key_of_organization on boathook.api_key (id) where application_id is null and revoked_at is null;

create table boathook.idempotency (
    key bytea primary key check (octet_length(key) = 32),
    request_sha256 bytea not null check (octet_length(request_sha256) = 32),
    status smallint,
    encrypted_response bytea,
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

-- Users of the console, and the sessions of their browsers.
create table boathook.operator (
    id uuid primary key,
    name text not null check (name <> ''),
    role text not null check (role in ('viewer', 'operator', 'admin')),
    password_hash text,
    subject text,
    created_at timestamptz not null default now(),
    signed_in_at timestamptz,
    disabled_at timestamptz
);
create unique index operator_name on boathook.operator (lower(name));
create unique index operator_subject on boathook.operator (subject) where subject is not null;

create table boathook.operator_session (
    token_sha256 bytea primary key check (octet_length(token_sha256) = 32),
    operator_id uuid not null references boathook.operator on delete cascade,
    created_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    expires_at timestamptz not null,
    client_address text not null,
    user_agent text not null
);
create index operator_session_of_operator on boathook.operator_session (operator_id);
create index operator_session_expiry on boathook.operator_session (expires_at);

-- Bearer tokens of operators for the API. What a token may do is the lower of its role and its operator's present one.
create table boathook.operator_token (
    id uuid primary key,
    token_sha256 bytea not null unique check (octet_length(token_sha256) = 32),
    operator_id uuid not null references boathook.operator on delete cascade,
    name text not null check (name <> ''),
    role text not null check (role in ('viewer', 'operator', 'admin')),
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    used_at timestamptz,
    revoked_at timestamptz,
    -- In hours: a day may have 23 or 25 of them.
    constraint operator_token_lifetime check (expires_at <= created_at + interval '2160 hours')
);
create index operator_token_of_operator on boathook.operator_token (operator_id);

-- Searches for events that an operator has saved under a name, as the query string of the page.
create table boathook.saved_view (
    operator_id uuid not null references boathook.operator on delete cascade,
    name text not null check (name <> ''),
    query text not null check (query <> ''),
    created_at timestamptz not null default now(),
    primary key (operator_id, name)
);

-- Sources that operators have added to those of boathook.toml. The encryption of the settings is bound to name and id.
-- `paths` repeats the paths of the settings: they are answered 503 while the settings cannot be read.
create table boathook.source (
    name text primary key check (name <> ''),
    id uuid not null,
    paths text[] not null,
    encrypted bytea not null,
    created_by text not null,
    created_at timestamptz not null default now(),
    changed_by text not null,
    changed_at timestamptz not null default now()
);

-- Secrets of sources that operators have added to those of boathook.toml; the encryption is bound to source and row.
create table boathook.source_secret (
    id uuid primary key,
    source text not null check (source <> ''),
    encrypted bytea not null,
    note text not null default '',
    added_by text not null,
    added_at timestamptz not null default now(),
    expires_at timestamptz
);
create index source_secret_of_source on boathook.source_secret (source, id);

-- How far each series of batches from the brokers has arrived; see boathook_rabbitmq.batch.
create table boathook.buffer_mark (
    series bigint primary key check (series > 0),
    sequence bigint not null check (sequence >= 0),
    lost bigint not null default 0 check (lost >= 0),
    last_event_at timestamptz,
    changed_at timestamptz not null default now()
);

-- Until when the rate of each source has been leased to gateways, in seconds since 1970. Unlogged: empty after a crash,
-- a failover or a restore, a rate starts again, and no commit of a lease waits for a disk.
create unlogged table boathook.source_rate (
    source text primary key check (source <> ''),
    allowed_at_s double precision not null default 0
);

-- Applied migrations, of boathook and of apps such as billing, with the SHA-256 of their text.
create table boathook.migration (
    app text not null check (app <> ''),
    name text not null check (name <> ''),
    sha256 bytea not null,
    applied_at timestamptz not null default now(),
    primary key (app, name)
);

-- One row for each open alert, and one for each that has recovered.
create table boathook.alert (
    id uuid primary key,
    rule text not null,
    subject text not null,
    severity text not null check (severity in ('warning', 'critical')),
    state text not null check (state in ('pending', 'firing', 'clearing', 'recovered')),
    -- When the current state began.
    since timestamptz not null,
    value double precision not null,
    worst double precision not null,
    fired_at timestamptz,
    recovered_at timestamptz,
    -- When a notification about it was last queued; it determines the next one.
    notified_at timestamptz,
    is_silenced boolean not null default false,
    -- Of an alert that an app has declared: texts for its summary, by placeholder.
    details json not null default '{}',
    constraint alert_pending_not_fired check ((state = 'pending') = (fired_at is null)),
    constraint alert_recovered_at_set check ((state = 'recovered') = (recovered_at is not null))
);
create unique index alert_open on boathook.alert (rule, subject) where state <> 'recovered';
create index alert_history on boathook.alert (recovered_at) where state = 'recovered';

-- Alerts that apps fire or resolve, until an evaluation counts them. A row for each, so that no transaction waits for
-- another one that fires the same alert.
create table boathook.alert_signal (
    id bigint generated always as identity primary key,
    rule text not null,
    subject text not null,
    is_resolved boolean not null,
    details json not null,
    at timestamptz not null default clock_timestamp()
);

-- How often an alert was fired for each subject, since it last was not for some time.
create table boathook.alert_burst (
    rule text not null,
    subject text not null,
    number bigint not null check (number > 0),
    last_at timestamptz not null,
    -- Those of the latest signal.
    details json not null,
    primary key (rule, subject)
);

-- Notifications about alerts, inserted in the transaction that changes the alert.
create table boathook.alert_notification (
    id bigint generated always as identity primary key,
    alert_id uuid not null references boathook.alert on delete cascade,
    channel text not null,
    kind text not null check (kind in ('firing', 'repeated', 'recovered')),
    state text not null default 'waiting' check (state in ('waiting', 'sent', 'given_up')),
    not_before timestamptz not null,
    created_at timestamptz not null default now(),
    ended_at timestamptz,
    -- The message that contains it, and the lease of the process that sends the message.
    message_id uuid,
    taken_until timestamptz,
    constraint alert_notification_waiting_not_ended check ((state = 'waiting') = (ended_at is null))
);
create unique index alert_notification_once on boathook.alert_notification (alert_id, channel, kind) where state = 'waiting';
create index alert_notification_waiting on boathook.alert_notification (channel, not_before) where state = 'waiting';
create index alert_notification_alert on boathook.alert_notification (alert_id);

-- The state of each channel.
create table boathook.alert_channel (
    name text primary key,
    failures integer not null default 0,
    not_before timestamptz not null default '-infinity',
    sent bigint not null default 0,
    sent_at timestamptz,
    -- When messages were sent within the last hour.
    recent timestamptz[] not null default '{}',
    error text,
    error_at timestamptz
);

create table boathook.alert_silence (
    id uuid primary key,
    rule text not null,
    subject text not null,
    note text not null,
    actor text not null,
    created_at timestamptz not null default now(),
    until timestamptz not null,
    ended_at timestamptz,
    ended_by text
);
create index alert_silence_until on boathook.alert_silence (until);

-- Fires an alert of an app for a subject, or resolves it, when the transaction commits.
create function boathook.fire_alert(p_rule text, p_subject text, p_is_resolved boolean, p_details json) returns void
language sql as $$
    insert into boathook.alert_signal (rule, subject, is_resolved, details)
    values (p_rule, p_subject, p_is_resolved, p_details)
$$;

-- The latest evaluation of the rules: one row.
create table boathook.alert_evaluation (
    singleton boolean primary key default true check (singleton),
    at timestamptz not null,
    host text not null,
    readings json not null
);

-- The metrics of each host, for charts and alert rules. Rows of the finest step are rolled up into the coarser steps.
create table boathook.metric_sample (
    step_s integer not null check (step_s > 0),
    at timestamptz not null,
    host text not null check (host <> ''),
    series json not null,
    -- The same summed over sources and recipients, so that a chart can read many rows quickly.
    totals json not null,
    is_rolled_up boolean not null,
    -- Rules use it to find rows that arrived late, because PostgreSQL was unavailable.
    stored_at timestamptz not null default clock_timestamp(),
    primary key (step_s, at, host)
);
create index metric_sample_not_rolled_up on boathook.metric_sample (at) where not is_rolled_up;
create index metric_sample_stored on boathook.metric_sample (stored_at) where step_s = 10;

-- Time to id: the smallest UUIDv7 of a time.
create function boathook.min_id(moment timestamptz) returns uuid language sql immutable strict parallel safe as $$
    select (lpad(to_hex(greatest(0, floor(extract(epoch from moment) * 1000)::bigint)), 12, '0') || '00000000000000000000')::uuid
$$;

-- Id to time: the millisecond at which a UUIDv7 was generated.
create function boathook.id_time(id uuid) returns timestamptz language sql immutable strict parallel safe as $$
    select to_timestamp(('x0000' || left(replace(id::text, '-', ''), 12))::bit(64)::bigint / 1000.0)
$$;

-- An error without the parts that vary: quoted values, numbers, ids, dates and runs of hexadecimal.
create function boathook.dead_shape(error text) returns text language sql immutable parallel safe as $$
    select left(
        regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
            coalesce(error, ''),
            '(^|[^0-9A-Za-z])(''[^'']*''|"[^"]*"|`[^`]*`)', '\1''*''', 'g'),
            '[0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]*', '#', 'g'),
            '\m[A-Fa-f]{8,}\M', '#', 'g'),
            '#([^0-9A-Za-z]{1,3}#)+', '#', 'g'),
            '\s+', ' ', 'g'),
        200)
$$;

-- The group of a dead letter: same recipient, same code, and errors of the same shape.
create function boathook.dead_group(recipient text, code text, error text) returns uuid language sql immutable parallel safe as $$
    select encode(substr(sha256(convert_to(
        concat_ws(E'\n', recipient, coalesce(code, ''), boathook.dead_shape(error)), 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- Both indexes contain dead letters only, so that other deliveries have no cost.
create index delivery_dead_group on boathook.delivery (boathook.dead_group(recipient, code, error), dead_at) where state = 'dead';
create index delivery_dead_at on boathook.delivery (dead_at, event_id, ordinal) where state = 'dead';

-- The sealed content of an audit row, as bytes that are the same on every server.
create function boathook.audit_content(entry boathook.audit) returns bytea language sql stable as $$
    select convert_to(
        json_build_array(
            entry.id, (extract(epoch from entry.at) * 1000000)::bigint, entry.actor, entry.action, entry.subject, entry.note)::text,
        'UTF8')
$$;

-- Gives unsealed audit rows their position in the chain, and the hash of the previous seal with their content; returns
-- the number. Transactions that write audit rows do not seal them: a chain in these would make each wait for the
-- others.
create function boathook.seal_audit(max_rows integer) returns integer language plpgsql as $$
declare
    entry boathook.audit;
    last_place bigint;
    last_seal bytea;
    sealed integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('boathook.seal_audit', 0));
    select place, audit_head.seal into last_place, last_seal from boathook.audit_head;
    for entry in select * from boathook.audit where sealed_as is null order by id limit max_rows loop
        sealed := sealed + 1;
        last_place := coalesce(last_place, 0) + 1;
        last_seal := sha256(coalesce(last_seal, '') || boathook.audit_content(entry));
        update boathook.audit set sealed_as = last_place, seal = last_seal where id = entry.id;
    end loop;
    if sealed > 0 then
        insert into boathook.audit_head (place, seal) values (last_place, last_seal)
        on conflict (singleton) do update set place = excluded.place, seal = excluded.seal;
    end if;
    return sealed;
end $$;

-- Creates the weekly partitions (Monday to Monday, UTC) from this week to weeks_ahead weeks ahead; returns the number
-- created.
create function boathook.ensure_partitions(weeks_ahead integer) returns integer language plpgsql as $$
declare
    monday timestamptz;
    parent text;
    child text;
    made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('boathook.ensure_partitions', 0));
    for week in 0 .. weeks_ahead loop
        monday := (date_trunc('week', now() at time zone 'UTC') + make_interval(weeks => week)) at time zone 'UTC';
        foreach parent in array array['event', 'event_cause', 'attempt', 'delivery_archive', 'side_effect', 'reply'] loop
            child := parent || '_' || to_char(monday at time zone 'UTC', 'YYYYMMDD');
            if to_regclass('boathook.' || child) is null then
                execute format(
                    'create table boathook.%I partition of boathook.%I for values from (%L) to (%L)',
                    child, parent, boathook.min_id(monday), boathook.min_id(monday + interval '7 days'));
                made := made + 1;
            end if;
        end loop;
    end loop;
    return made;
end $$;

-- Unblocks the first waiting delivery of an order key, if no delivery of that key precedes it. It becomes due now, not
-- in the past, where the watermark of claims would hide it for a while.
create function boathook.unblock(p_recipient text, p_order_key text) returns void language sql
set enable_seqscan = off as $$
    update boathook.delivery d
    set is_blocked = false, due_at = greatest(d.due_at, clock_timestamp())
    where d.recipient = p_recipient and d.order_key = p_order_key and d.state = 'pending' and d.is_blocked
      and d.seq = (
          select min(o.seq) from boathook.delivery o
          where o.recipient = p_recipient and o.order_key = p_order_key and o.state <> 'dead')
$$;

-- Settles a delivery as succeeded or ignored, in the transaction of its effects. Raises BH001 when the fence no longer
-- holds, which aborts that transaction: a stale worker cannot commit, even if its code swallows errors. Raises BH002
-- when p_mark differs from boathook.mark: it was set for this transaction only, so the handler has ended it.
-- "leased_by is not null" means "state = 'leased'", but keeps the planner from using the index of leases. Functions that
-- look up deliveries by key never scan the table, because plans last longer than the size they were made for.
create function boathook.settle(
    p_event uuid, p_ordinal integer, p_fence bigint, p_state text, p_note text, p_worker text, p_started timestamptz,
    p_mark text default null
) returns void language plpgsql set enable_seqscan = off as $$
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
    insert into boathook.delivery_archive (
        event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays, note, ended_at, item_path, item_type,
        is_manual)
    values (
        d.event_id, d.ordinal, d.recipient, p_state, d.order_key, d.is_replay, d.attempts, d.replays, p_note, ended,
        d.item_path, d.item_type, d.is_manual);
    if d.order_key is not null then
        perform boathook.unblock(d.recipient, d.order_key);
    end if;
end $$;

-- Stores a handler's reply to a waiting sender, the first one if there are several, and notifies waiting gateways that
-- an attempt has ended. Without a status it only notifies.
create function boathook.store_reply(
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

-- Ends an attempt without success: due again at p_due, or dead if that is null. Returns false if the fence no longer
-- holds. A free retry is counted, but not against the retry budget. Dead letters are notified, as a sender may wait for
-- them. A delivery that was woken during the attempt is due immediately, and revived with a new budget instead of
-- dying.
create function boathook.record_failure(
    p_event uuid, p_ordinal integer, p_fence bigint, p_due timestamptz, p_outcome text, p_code text, p_error text,
    p_traceback text, p_worker text, p_started timestamptz, p_is_free boolean default false, p_dependency text default null
) returns boolean language plpgsql set enable_seqscan = off as $$
declare
    d boathook.delivery;
    ended timestamptz := clock_timestamp();
    is_revived boolean;
begin
    select * into d from boathook.delivery
    where event_id = p_event and ordinal = p_ordinal and fence = p_fence and leased_by is not null
    for update;
    if not found then
        return false;
    end if;
    is_revived := p_due is null and d.woken_by is not null;
    update boathook.delivery
    set state = case when p_due is null and not is_revived then 'dead' else 'pending' end,
        due_at = case when d.woken_by is null then coalesce(p_due, due_at) else ended end,
        enqueued_at = case when is_revived then ended else enqueued_at end,
        dead_at = case when p_due is null and not is_revived then ended end,
        crashes = case when p_outcome = 'lost' and not is_revived then crashes + 1 else 0 end,
        attempts_before = case when is_revived then attempts else attempts_before + p_is_free::integer end,
        free_retries = case when is_revived then 0 else free_retries + p_is_free::integer end,
        replays = replays + is_revived::integer,
        leased_by = null, lease_until = null, woken_by = null, code = p_code, error = p_error
    where event_id = p_event and ordinal = p_ordinal;
    insert into boathook.attempt (
        event_id, ordinal, number, outcome, code, error, traceback, worker, started_at, ended_at, dependency)
    values (
        d.event_id, d.ordinal, d.attempts, p_outcome, p_code, p_error, p_traceback, p_worker, p_started, ended,
        p_dependency);
    if is_revived then
        insert into boathook.audit (actor, action, subject)
        values (d.woken_by, 'dead.replay', boathook.show_id('dlv', p_event) || '_' || p_ordinal);
    elsif p_due is null then
        perform pg_notify('boathook_reply', p_event::text);
        if d.order_key is not null then
            perform boathook.unblock(d.recipient, d.order_key);
        end if;
    end if;
    if d.woken_by is not null then
        perform pg_notify('boathook_due', '');
    end if;
    return true;
end $$;

-- Ends an attempt after which its delivery waits for a key until p_until at the latest; without p_until it is ignored,
-- with the note. Returns false if the fence no longer holds. Waiting costs no attempt. If a signal was committed since
-- the delivery last looked for one, or ever where it waits for the first time, the handler may have missed what came, so
-- the delivery is due at once. This happens once for each signal, because `snapshot` tells which ones were seen.
create function boathook.record_wait(
    p_event uuid, p_ordinal integer, p_fence bigint, p_key text, p_until timestamptz, p_code text, p_note text,
    p_worker text, p_started timestamptz
) returns boolean language plpgsql set enable_seqscan = off as $$
declare
    d boathook.delivery;
    ended timestamptz := clock_timestamp();
    seen pg_snapshot;
    is_signalled boolean;
begin
    select * into d from boathook.delivery
    where event_id = p_event and ordinal = p_ordinal and fence = p_fence and leased_by is not null
    for update;
    if not found then
        return false;
    end if;
    if p_until is null then
        perform boathook.settle(p_event, p_ordinal, p_fence, 'ignored', p_note, p_worker, p_started);
        return true;
    end if;
    select pg_current_snapshot(), exists (
        select from boathook.wait_signal s
        where s.key = p_key and s.xid is distinct from w.woken_by
            and not coalesce(w.key = p_key and pg_visible_in_snapshot(s.xid, w.snapshot), false))
    into seen, is_signalled
    from (values (1)) as v left join boathook.delivery_wait w on w.event_id = p_event and w.ordinal = p_ordinal;
    insert into boathook.delivery_wait (event_id, ordinal, key, attempts, snapshot)
    values (p_event, p_ordinal, p_key, d.attempts, seen)
    on conflict (event_id, ordinal) do update set
        key = excluded.key, attempts = excluded.attempts, snapshot = excluded.snapshot, woken_by = null, is_matched = false;
    update boathook.delivery
    set state = 'pending', (due_at, enqueued_at) = (
            select t.due, t.due from (
                select case when is_signalled or d.woken_by is not null then ended else p_until end as due) as t),
        attempts_before = attempts, free_retries = 0, crashes = 0,
        leased_by = null, lease_until = null, woken_by = null, code = p_code, error = p_note
    where event_id = p_event and ordinal = p_ordinal;
    insert into boathook.attempt (event_id, ordinal, number, outcome, code, error, worker, started_at, ended_at)
    values (d.event_id, d.ordinal, d.attempts, 'waiting', p_code, p_note, p_worker, p_started, ended);
    return true;
end $$;

-- Tries again, once this transaction is committed, the deliveries that wait for a key; returns how many of those that are
-- known so far. It waits for no lock: a delivery that another transaction holds, or that only now begins to wait, is left to
-- `match_signals` of the keeper.
create function boathook.signal(p_key text) returns integer language plpgsql set enable_seqscan = off as $$
declare
    woken integer;
begin
    insert into boathook.wait_signal (key) values (p_key);
    with waiting as materialized (
        select d.event_id, d.ordinal
        from boathook.delivery_wait w
        cross join lateral (
            select event_id, ordinal from boathook.delivery
            where event_id = w.event_id and ordinal = w.ordinal and attempts = w.attempts and state = 'pending'
                and due_at > clock_timestamp()
            for update skip locked
        ) as d
        where w.key = p_key
    ),
    due as (
        update boathook.delivery d
        set due_at = clock_timestamp(), enqueued_at = clock_timestamp()
        where d.event_id = any (array(select event_id from waiting))
            and ((d.event_id, d.ordinal) in (select event_id, ordinal from waiting)) is true
    )
    update boathook.delivery_wait w
    set woken_by = pg_current_xact_id()
    where w.key = p_key and (w.event_id, w.ordinal) in (select event_id, ordinal from waiting);
    get diagnostics woken = row_count;
    if woken > 0 then
        perform pg_notify('boathook_due', '');
    end if;
    return woken;
end $$;

-- Returns whether this stamp is newer than all earlier ones of the key, and stores it if so; an equal one is not newer.
create function boathook.newer(p_recipient text, p_kind text, p_key text, p_stamp numeric, p_event uuid)
returns boolean language sql as $$
    with kept as (
        insert into boathook.entity_version as n (recipient, kind, key, stamp, event_id)
        values (p_recipient, p_kind, p_key, p_stamp, p_event)
        on conflict (recipient, kind, key) do update set stamp = excluded.stamp, event_id = excluded.event_id
        where n.stamp < excluded.stamp
        returning 1
    )
    select exists (select from kept)
$$;

-- The active routes and their version, as one JSON document.
create function boathook.active_routes() returns json language sql stable as $$
    select json_build_object(
        'version', (select version from boathook.route_version),
        'routes', coalesce(
            (select json_agg(
                json_build_object(
                    'recipient', recipient, 'app', app, 'source', source, 'application', application, 'types', types,
                    'filter', filter, 'order_by', order_by, 'policy', policy, 'timeout_s', timeout_s)
                order by recipient, position)
             from boathook.route where is_active),
            '[]'),
        'assignments', coalesce(
            (select json_agg(json_build_object('source', source, 'cell', cell, 'revision', revision))
             from boathook.cell_assignment),
            '[]'))
$$;

-- A column of a batch: one value stands for as many equal ones as there are ids.
create function boathook.fill(p_values anyarray, p_ids uuid[]) returns anyarray language sql immutable as $$
    select case when cardinality(p_values) = 1 then array_fill(p_values[1], array[cardinality(p_ids)]) else p_values end
$$;

-- Claims events of objects for storing: each is new unless it repeats the newest event of its object, and that was
-- accepted less than p_memory before. Events are taken in the order of their objects, so that two gateways cannot
-- deadlock, and then in the given order. Returns for each event the one that it repeats, or itself.
create function boathook.claim_objects(
    p_ids uuid[], p_objects uuid[], p_keys uuid[], p_hashes bytea[], p_memory interval[]
) returns table (id uuid, first_id uuid, first_sha256 bytea, is_elsewhere boolean, is_new boolean) language plpgsql as $$
declare
    e record;
begin
    for e in
        select * from unnest(p_ids, p_objects, p_keys, p_hashes, p_memory) with ordinality
            as i (id, object, key, sha256, memory, position)
        order by i.object, i.position
    loop
        insert into boathook.dedup as d (key, newest_key, event_id, body_sha256, expires_at)
        values (e.object, e.key, e.id, e.sha256, boathook.id_time(e.id) + e.memory)
        on conflict (key) do update set
            newest_key = excluded.newest_key, event_id = excluded.event_id, body_sha256 = excluded.body_sha256,
            expires_at = excluded.expires_at, cell = null
        where d.newest_key is distinct from excluded.newest_key or d.expires_at <= boathook.id_time(excluded.event_id);
        id := e.id;
        is_new := found;
        select d.event_id, d.body_sha256, d.cell is not null into first_id, first_sha256, is_elsewhere
        from boathook.dedup d where d.key = e.object;
        return next;
    end loop;
end $$;

-- Stores new events with their deliveries, in the transaction that has inserted their keys. Only this statement inserts
-- events, whatever their origin. Call it with named arguments. The p_ arrays describe the events, the d_ arrays the
-- deliveries, in the order in which ordered ones must run; an array of equal values may hold only one of them, and those
-- that default to null are null if no event or delivery has a value. Deliveries are due now, or at d_due if that is later.
-- p_new lists the events to be stored; null: all. p_has_order says whether a delivery has an order key, p_has_unhandled
-- whether an unhandled event may have no deliveries, p_is_manual whether each delivery gets only one attempt.
-- Returns whether an ordered delivery is blocked: the caller then unblocks its order key after the commit, because the
-- preceding delivery may have ended meanwhile.
create function boathook.store_events(
    p_ids uuid[], p_types text[], p_dedup_keys text[], p_grades text[], p_origins text[], p_headers text[],
    p_content_types text[], p_bodies bytea[], p_hashes bytea[], p_fanouts smallint[], d_events uuid[], d_ordinals smallint[],
    d_recipients text[], p_sources text[] default '{null}', p_applications text[] default '{null}',
    p_channels text[] default null, p_tags text[] default null, p_deliver_at timestamptz[] default null,
    p_content_until timestamptz[] default null, p_items text[] default null, p_new uuid[] default null,
    d_order_keys text[] default '{null}', d_due timestamptz[] default null, d_paths text[] default null,
    d_types text[] default null, p_has_order boolean default false, p_has_unhandled boolean default false,
    p_is_manual boolean default false, p_same_body_as uuid[] default null
) returns boolean language plpgsql set enable_seqscan = off as $$
declare
    accepted timestamptz := clock_timestamp();
    blocked boolean[];
begin
    insert into boathook.event (
        id, source, application, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout,
        channels, tags, deliver_at, content_until, items, same_body_as)
    select e.id, e.source, e.application, e.type, e.dedup_key, e.grade, e.origin, e.headers::json, e.content_type, e.body,
        e.body_sha256, e.fanout, e.channels::text[], e.tags::text[], e.deliver_at, e.content_until, e.items::json,
        e.same_body_as
    from unnest(
        p_ids, boathook.fill(p_sources, p_ids), boathook.fill(p_applications, p_ids), boathook.fill(p_types, p_ids),
        boathook.fill(p_dedup_keys, p_ids), boathook.fill(p_grades, p_ids), boathook.fill(p_origins, p_ids),
        boathook.fill(p_headers, p_ids), boathook.fill(p_content_types, p_ids), boathook.fill(p_bodies, p_ids),
        boathook.fill(p_hashes, p_ids), boathook.fill(p_fanouts, p_ids), p_channels, p_tags, p_deliver_at, p_content_until,
        p_items, p_same_body_as
    ) as e (
        id, source, application, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout, channels,
        tags, deliver_at, content_until, items, same_body_as)
    where p_new is null or e.id = any (p_new)
    order by e.id;
    if p_has_unhandled then
        insert into boathook.unhandled (event_id, subject)
        select e.id, coalesce(e.source, e.application)
        from unnest(
            p_ids, boathook.fill(p_sources, p_ids), boathook.fill(p_applications, p_ids), boathook.fill(p_fanouts, p_ids)
        ) as e (id, source, application, fanout)
        where e.fanout = 0 and (p_new is null or e.id = any (p_new))
            and (e.source is not null or boathook.read_id('app', e.application) is null)
        order by e.id
        on conflict do nothing;
    end if;
    if p_has_order then
        blocked := array(
            select d.order_key is not null and (
                count(*) filter (where p_new is null or d.event_id = any (p_new)) over (
                    partition by d.recipient, d.order_key order by d.position
                    rows between unbounded preceding and 1 preceding) > 0
                or exists (
                    select from boathook.delivery o
                    where o.recipient = d.recipient and o.order_key = d.order_key and o.state <> 'dead'))
            from unnest(d_events, boathook.fill(d_recipients, d_events), boathook.fill(d_order_keys, d_events))
                with ordinality as d (event_id, recipient, order_key, position)
            order by d.position);
    end if;
    insert into boathook.delivery (
        event_id, ordinal, recipient, order_key, is_blocked, enqueued_at, due_at, item_path, item_type, is_manual)
    select d.event_id, d.ordinal, d.recipient, d.order_key, coalesce(d.is_blocked, false), greatest(accepted, d.due),
        greatest(accepted, d.due), d.path, d.type, p_is_manual
    from unnest(
        d_events, boathook.fill(d_ordinals, d_events), boathook.fill(d_recipients, d_events),
        boathook.fill(d_order_keys, d_events), blocked, d_due, d_paths, d_types
    ) with ordinality as d (event_id, ordinal, recipient, order_key, is_blocked, due, path, type, position)
    where p_new is null or d.event_id = any (p_new)
    order by d.position;
    return coalesce(true = any (blocked), false);
end $$;

-- Adds deliveries to stored events, or items of them, for replays, resends and rerouting. Only this statement does so.
-- A null time means now. An ordered delivery is blocked until `ordering.unblock` finds it first of its order key.
create function boathook.add_deliveries(
    p_events uuid[], p_ordinals bigint[], p_recipients text[], p_order_keys text[], p_due timestamptz[], p_paths text[],
    p_types text[], p_is_manual boolean
) returns table (event_id uuid, ordinal integer, recipient text, order_key text) language sql as $$
    insert into boathook.delivery as o (
        event_id, ordinal, recipient, order_key, is_blocked, is_replay, is_manual, enqueued_at, due_at, item_path, item_type)
    select d.event_id, d.ordinal, d.recipient, d.order_key, d.order_key is not null, true, p_is_manual,
        coalesce(d.due, clock_timestamp()), coalesce(d.due, clock_timestamp()), d.path, d.type
    from unnest(p_events, p_ordinals, p_recipients, p_order_keys, p_due, p_paths, p_types)
        with ordinality as d (event_id, ordinal, recipient, order_key, due, path, type, position)
    order by d.position
    returning o.event_id, o.ordinal::integer, o.recipient, o.order_key
$$;

-- The public form of an id: a prefix and 27 characters of Crockford's base 32.
create function boathook.show_id(prefix text, id uuid) returns text language sql immutable strict parallel safe as $$
    select prefix || '_' || string_agg(
        substr('0123456789abcdefghjkmnpqrstvwxyz', substr(bits, 5 * place + 1, 5)::bit(5)::integer + 1, 1), '' order by place)
    from (select '0000000' || ('x' || replace(id::text, '-', ''))::bit(128)::text as bits) as whole, generate_series(0, 26) as place
$$;

-- Parses the output of show_id with this prefix, in either case; null if the text is not such an id.
create function boathook.read_id(prefix text, name text) returns uuid language sql immutable strict parallel safe as $$
    select string_agg(lpad(to_hex(substr(bits, 8 + 32 * part, 32)::bit(32)::bigint), 8, '0'), '' order by part)::uuid
    from (
        select string_agg((strpos('0123456789abcdefghjkmnpqrstvwxyz', digit) - 1)::bit(5)::text, '' order by place) as bits
        from regexp_split_to_table(lower(substr(name, length(prefix) + 2)), '') with ordinality as d (digit, place)
    ) as read, generate_series(0, 3) as part
    where starts_with(name, prefix || '_') and lower(substr(name, length(prefix) + 2)) ~ '^0[0-7][0-9a-hjkmnp-tv-z]{25}$'
$$;

-- The endpoint of a recipient; null if the recipient is not an endpoint.
create function boathook.endpoint_of(recipient text) returns uuid language sql immutable strict parallel safe as $$
    select boathook.read_id('ep', substr(recipient, 10)) where recipient ~ '^endpoint:ep_[0-9a-hjkmnp-tv-z]{27}$'
$$;

-- The names under which events of an application are stored, given its id, uid or imported id, or another name.
create function boathook.application_names(p_application text) returns text[] language sql stable as $$
    select array[p_application] || array(
        select boathook.show_id('app', id) from boathook.application
        where (uid = p_application or imported_id = p_application) and deleted_at is null)
$$;

-- Returns whether a recipient accepts deliveries: any handler does, and any endpoint that is neither deleted nor
-- disabled.
create function boathook.accepts_deliveries(p_recipient text) returns boolean language sql stable as $$
    select not starts_with(p_recipient, 'endpoint:') or exists (
        select from boathook.endpoint e join boathook.application a on a.id = e.application_id
        where e.id = boathook.endpoint_of(p_recipient) and e.deleted_at is null and not e.is_disabled and a.deleted_at is null)
$$;

-- The routes for messages of an application, found by id, uid or imported id, and their versions, as one JSON document.
-- Each version includes the id of the transaction that wrote it, because a rollback lets another one reuse its number.
-- Handlers may name an application by id, one of the default organization also by uid or imported id, and one that does
-- not exist yet.
-- All messages of an application that has moved to another cell go to the handler that passes them on to that cell.
create function boathook.routes_for(p_organization text, p_application text) returns json language sql stable as $$
    with found as materialized (
        select id, uid, imported_id, routes_version || '.' || xmin::text as version, boathook.show_id('app', id) as name, is_operational,
            cell, routes_version as revision
        from boathook.application
        where organization = p_organization and deleted_at is null
            and (id = boathook.read_id('app', p_application) or uid = p_application or imported_id = p_application)
        order by (id = boathook.read_id('app', p_application)) is true desc
        limit 1
    ),
    lines as (
        select 1 as part, recipient as first, position as second, json_build_object(
                'recipient', recipient, 'app', app, 'application', coalesce((select name from found), p_application),
                'types', types, 'filter', filter, 'order_by', order_by) as route
        from boathook.route
        where is_active and (select cell from found) is null and (
            application = (select name from found)
            or p_organization = 'default'
                and application in (p_application, (select uid from found), (select imported_id from found)))
        union all
        select 2, e.id::text, 0, json_build_object(
                'recipient', 'endpoint:' || boathook.show_id('ep', e.id), 'app', '', 'application', f.name,
                'types', coalesce(e.event_types, '{*}'), 'channels', e.channels, 'filter', e.filter, 'order_by', e.order_by)
        from found f join boathook.endpoint e on e.application_id = f.id
        where e.deleted_at is null and not e.is_disabled and f.cell is null
        union all
        select 3, '', 0, json_build_object(
                'recipient', 'handler:cells.' || cell, 'app', '', 'application', name, 'types', array['*'])
        from found where cell is not null
    )
    select json_build_object(
        'registry', (select version || '.' || xmin::text from boathook.route_version),
        'application', (select row_to_json(found) from found),
        'routes', coalesce((select json_agg(route order by part, first, second) from lines), '[]'))
$$;

-- Takes back messages that were passed on to another cell, whose application has come back: adds their deliveries here,
-- and returns these messages. It leaves those whose key shows that another cell has stored them, or an earlier message.
create function boathook.take_back(
    p_ids uuid[], p_keys uuid[], d_events uuid[], d_ordinals smallint[], d_recipients text[], d_order_keys text[],
    d_due timestamptz[]
) returns uuid[] language plpgsql set enable_seqscan = off as $$
declare
    taken uuid[];
begin
    with found as (
        update boathook.event e set cell = null
        from unnest(p_ids, p_keys) as m (id, key)
        where e.id = m.id and e.id = any (p_ids) and e.cell is not null
            and exists (select from boathook.dedup d where d.key = m.key and d.event_id = m.id and d.cell is null)
        returning e.id
    )
    select coalesce(array_agg(id), '{}') into taken from found;
    if taken = '{}' then
        return taken;
    end if;
    -- As for any replay, as two of them must not take the same ordinals.
    perform pg_advisory_xact_lock(hashtextextended('boathook.replay:' || id, 0))
    from (select id::text from unnest(taken) as t (id) order by 1) as sorted;
    perform boathook.unblock(a.recipient, a.order_key)
    from (
        select array_agg(d.event_id order by position) as events,
            array_agg(k.next + d.ordinal order by position) as ordinals,
            array_agg(d.recipient order by position) as recipients,
            array_agg(d.order_key order by position) as order_keys,
            array_agg(greatest(clock_timestamp(), d.due) order by position) as due
        from unnest(d_events, d_ordinals, d_recipients, d_order_keys, d_due)
            with ordinality as d (event_id, ordinal, recipient, order_key, due, position)
        join lateral (
            select coalesce(max(ordinal), -1) + 1 as next from (
                select ordinal from boathook.delivery where event_id = d.event_id
                union all
                select ordinal from boathook.delivery_archive where event_id = d.event_id
            ) as known
        ) as k on true
        where d.event_id = any (taken)
    ) as n,
        boathook.add_deliveries(n.events, n.ordinals, n.recipients, n.order_keys, n.due, null, null, false) as a
    where a.order_key is not null;
    return taken;
end $$;

-- Stores messages with their deliveries, each once. The t_ arrays describe the targets: the result of `routes_for`, and
-- the SHA-256 of the requesting API token, null for none. The m_ arrays describe the messages, each with the number of
-- its target, and the d_ arrays their deliveries. The verdict of a message is null if it is stored, else
--   unauthorized      its token is no longer valid
--   outdated          the routes, or the application with this name, have changed; call routes_for again
--   missing           the application was deleted
--   duplicate ID      a message with this key and body exists
--   conflict ID       a message with this key exists, but with another body
--   repeated ID       a message with this idempotency key exists, from the same request
--   clash ID          a message with this idempotency key exists, from another request
-- Versions are compared without a lock: a publisher's transaction may be long, and must not block a deployment. Where
-- there are cells, applications are locked, but against a move only, which waits for their publishers to end. A message
-- whose application has moved is stored with its only delivery, which passes it on; if it is published again under its
-- id when the application has come back, it gets its other deliveries. Tokens are locked, so that a committed revocation
-- is seen. A key that another transaction is storing is waited for, up to
-- p_lock_timeout. has_blocked is the result of store_events. Its statements keep one plan, because planning them for each
-- call took a third of the time.
create function boathook.publish_messages(
    t_organizations text[], t_applications uuid[], t_uids text[], t_registries text[], t_routes text[], t_tokens bytea[],
    m_targets integer[], m_ids uuid[], m_names text[], m_types text[], m_dedup_keys text[], m_keys uuid[],
    m_replay_keys uuid[], m_request_hashes bytea[], m_memories interval[], m_headers text[], m_content_types text[],
    m_bodies bytea[], m_hashes bytea[], m_fanouts smallint[], m_channels text[], m_tags text[],
    m_deliver_at timestamptz[], m_content_until timestamptz[],
    d_events uuid[], d_ordinals smallint[], d_recipients text[], d_order_keys text[], d_due timestamptz[],
    p_has_order boolean, p_lock_timeout text, out verdicts text[], out has_blocked boolean, p_origin text default 'published'
) language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    current_registry text;
    has_cells boolean;
    refused text[];
    cells text[];
    wanted integer;
    fresh uuid[] := '{}';
    taken uuid[] := '{}';
begin
    select version || '.' || xmin::text, exists (select from boathook.cell_name) into current_registry, has_cells
    from boathook.route_version;
    if p_lock_timeout is not null then
        perform set_config('lock_timeout', p_lock_timeout, true);
    end if;
    perform from boathook.api_key where token_sha256 = any (t_tokens) order by id for share;
    if has_cells then
        -- Not those that have moved: a steady stream of locks would keep the move waiting.
        perform from boathook.application where id = any (t_applications) and cell is null order by id for key share;
    end if;
    select
        array_agg(case
            when t.token is not null and not exists (
                select from boathook.api_key k
                where k.token_sha256 = t.token and k.organization = t.organization and k.application_id is null
                    and k.mount is null
                    and k.revoked_at is null and (k.expires_at is null or k.expires_at > now()))
                then 'unauthorized'
            when t.registry is distinct from current_registry then 'outdated'
            when t.application is not null and (a.id is null or a.deleted_at is not null) then 'missing'
            when t.application is not null and t.uid is not null and (t.uid in (a.uid, a.imported_id)) is not true
                then 'outdated'
            when t.application is not null and a.routes_version || '.' || a.xmin::text is distinct from t.routes
                then 'outdated'
            when t.application is null and exists (
                select from boathook.application n
                where n.organization = t.organization and (n.uid = t.uid or n.imported_id = t.uid) and n.deleted_at is null)
                then 'outdated'
            end order by t.position),
        array_agg(a.cell order by t.position)
    into refused, cells
    from unnest(t_organizations, t_applications, t_uids, t_registries, t_routes, t_tokens)
        with ordinality as t (organization, application, uid, registry, routes, token, position)
    left join boathook.application a on a.id = t.application;
    wanted := (select count(*) from unnest(m_targets) as m (target) where refused[m.target] is null);
    for round in 1..2 loop
        exit when cardinality(fresh) = wanted;
        with stored as (
            insert into boathook.dedup (key, replay_key, event_id, body_sha256, expires_at, request_sha256)
            select m.key, m.replay_key, m.id, m.hash, now() + m.memory, m.request_sha256
            from unnest(m_targets, m_ids, m_keys, m_replay_keys, m_hashes, m_memories, m_request_hashes)
                as m (target, id, key, replay_key, hash, memory, request_sha256)
            where refused[m.target] is null and (round = 1 or m.id <> all (fresh))
            order by coalesce(m.replay_key, m.key), m.key
            on conflict do nothing
            returning event_id
        )
        select fresh || coalesce(array_agg(event_id), '{}') into fresh from stored;
        exit when round = 2 or cardinality(fresh) = wanted;
        delete from boathook.dedup
        where (key = any (m_keys) or replay_key = any (m_replay_keys)) and expires_at < now();
        exit when not found;
    end loop;
    if has_cells and exists (select from boathook.event where id = any (m_ids) and cell is not null) then
        select boathook.take_back(array_agg(m.id), array_agg(m.key), d_events, d_ordinals, d_recipients, d_order_keys, d_due)
        into taken
        from unnest(m_targets, m_ids, m_keys) as m (target, id, key)
        where refused[m.target] is null and cells[m.target] is null;
        fresh := array(select id from unnest(fresh) as f (id) where id <> all (taken));
    end if;
    if cardinality(fresh) > 0 then
        has_blocked := boathook.store_events(
            p_ids => m_ids, p_applications => m_names, p_types => m_types, p_dedup_keys => m_dedup_keys, p_grades => '{none}',
            p_origins => array[p_origin], p_headers => m_headers, p_content_types => m_content_types, p_bodies => m_bodies,
            p_hashes => m_hashes, p_fanouts => m_fanouts, p_channels => m_channels, p_tags => m_tags,
            p_deliver_at => m_deliver_at, p_content_until => m_content_until,
            p_new => case when cardinality(fresh) < cardinality(m_ids) then fresh end,
            p_has_unhandled => array_position(t_applications, null) is not null,
            d_events => d_events, d_ordinals => d_ordinals, d_recipients => d_recipients, d_order_keys => d_order_keys,
            d_due => d_due, p_has_order => p_has_order);
        if array_remove(cells, null) <> '{}' then
            update boathook.event e set cell = cells[m.target]
            from unnest(m_targets, m_ids) as m (target, id)
            where e.id = m.id and e.id = any (fresh) and cells[m.target] is not null;
        end if;
    end if;
    if cardinality(fresh) = cardinality(m_ids) then
        verdicts := array_fill(null::text, array[cardinality(m_ids)]);
        return;
    end if;
    verdicts := array(
        select case
            when m.id = any (fresh || taken) then null
            when refused[m.target] is not null then refused[m.target]
            when same_request.event_id is not null then
                case when same_request.request_sha256 = m.request_sha256 then 'repeated ' else 'clash ' end
                || same_request.event_id
            when same_key.event_id is not null then
                case when same_key.body_sha256 = m.hash then 'duplicate ' else 'conflict ' end || same_key.event_id
            else 'outdated'  -- its key has just expired
            end
        from unnest(m_targets, m_ids, m_keys, m_replay_keys, m_hashes, m_request_hashes)
            with ordinality as m (target, id, key, replay_key, hash, request_sha256, position)
        left join boathook.dedup same_request on same_request.replay_key = m.replay_key
        left join boathook.dedup same_key on same_key.key = m.key
        order by m.position);
end $$;

-- Runs publish_messages for one message, in the publisher's transaction and through any driver. The message is a JSON
-- object of the columns below, p_deliveries a list. Stores the cause of what a handler publishes. Returns 'accepted', or
-- the verdict of publish_messages.
create function boathook.publish_message(p_message json, p_body bytea, p_deliveries json) returns text language sql as $$
    with done as materialized (
        select m.id, m.cause_id, m.cause_ordinal, done.verdicts[1] as verdict
        from json_to_record(p_message) as m (
                id uuid, organization text, application uuid, uid text, name text, registry text, routes text, type text,
                dedup_key text, key uuid, replay_key uuid, request_sha256 bytea, memory interval, headers json,
                content_type text, channels text[], tags text[], deliver_at timestamptz, due timestamptz,
                content_until timestamptz, origin text, cause_id uuid, cause_ordinal smallint),
            (
                select coalesce(array_agg(u.position::smallint - 1::smallint order by u.position), '{}') as ordinals,
                    array_agg(u.recipient order by u.position) as recipients,
                    array_agg(u.order_key order by u.position) as order_keys,
                    count(*)::smallint as number, count(u.order_key) > 0 as has_order
                from rows from (json_to_recordset(p_deliveries) as (recipient text, order_key text))
                    with ordinality as u (recipient, order_key, position)
            ) as d,
            boathook.publish_messages(
                array[m.organization], array[m.application], array[m.uid], array[m.registry], array[m.routes],
                array[null::bytea], array[1], array[m.id], array[m.name], array[m.type], array[m.dedup_key], array[m.key],
                array[m.replay_key], array[m.request_sha256], array[m.memory], array[m.headers::text],
                array[m.content_type], array[p_body], array[sha256(p_body)], array[d.number], array[m.channels::text],
                array[m.tags::text], array[m.deliver_at], array[m.content_until], array_fill(m.id, array[d.number::integer]),
                d.ordinals, d.recipients, d.order_keys, array_fill(m.due, array[d.number::integer]), d.has_order,
                null, p_origin => coalesce(m.origin, 'published')
            ) as done
    ),
    linked as (
        insert into boathook.event_cause (event_id, cause_id, cause_ordinal, first_id)
        select d.id, d.cause_id, d.cause_ordinal,
            coalesce((select c.first_id from boathook.event_cause c where c.event_id = d.cause_id), d.cause_id)
        from done d where d.verdict is null and d.cause_id is not null
    )
    select coalesce(verdict, 'accepted') from done
$$;

select boathook.ensure_partitions(4);
