-- boathook's database schema, for PostgreSQL 14 or later.
--
-- The tables, in the order of the data flow:
--   route, route_version   which recipient gets which events; the version increases with every change
--   source_assignment, installation   the home of each source, and the one that this database belongs to
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

-- function: raise_route_version

create trigger route_changed after insert or update or delete on boathook.route
    for each statement execute function boathook.raise_route_version();

-- The home of each source that was assigned to an installation. A change raises the routes' version, so no gateway stores
-- an event of a source that has moved to another installation.
create table boathook.source_assignment (
    source text primary key check (source <> ''),
    home text not null check (home <> ''),
    revision bigint not null check (revision > 0),
    assigned_at timestamptz not null default now()
);
create trigger assignment_changed after insert or update or delete on boathook.source_assignment
    for each row execute function boathook.raise_route_version();

-- The name of the installation that this database belongs to, if there are several.
create table boathook.installation (
    singleton boolean primary key default true check (singleton),
    name text not null check (name <> ''),
    -- The app that passes messages on to the others, by one handler for each of them, called after it.
    app text not null check (app <> '')
);

create table boathook.dedup (
    key uuid primary key,
    replay_key uuid,
    event_id uuid not null,
    body_sha256 bytea not null check (octet_length(body_sha256) = 32),
    expires_at timestamptz not null,
    item_path text,
    request_sha256 bytea,
    -- The installation that stores the event, if another one does.
    home text,
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
    -- The home that the application of a message had moved to when it was published here. Null if the deliveries of
    -- its recipients are here, also because the application has come back.
    home text,
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
    -- The installation that it has moved to; null if it is here. Its messages and endpoints of before stay.
    home text check (home <> ''),
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
    -- The address of its destination, which a kind other than http makes from its fields.
    url text not null,
    -- The kind of its destination, the fields of the kind, and those of them that are secrets.
    destination text not null default 'http' check (destination <> ''),
    destination_fields json not null default '{}',
    encrypted_destination bytea,
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

-- function: fire_alert

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

-- function: min_id

-- function: id_time

-- function: dead_shape

-- function: dead_group

-- Both indexes contain dead letters only, so that other deliveries have no cost.
create index delivery_dead_group on boathook.delivery (boathook.dead_group(recipient, code, error), dead_at) where state = 'dead';
create index delivery_dead_at on boathook.delivery (dead_at, event_id, ordinal) where state = 'dead';

-- function: audit_content

-- function: seal_audit

-- function: ensure_partitions

-- function: unblock

-- function: settle

-- function: store_reply

-- function: record_failure

-- function: record_wait

-- function: signal

-- function: newer

-- function: active_routes

-- function: fill

-- function: claim_objects

-- function: store_events

-- function: add_deliveries

-- function: show_id

-- function: read_id

-- function: endpoint_of

-- function: application_names

-- function: accepts_deliveries

-- function: routes_for

-- function: take_back

-- function: publish_messages

-- function: publish_message

select boathook.ensure_partitions(4);
