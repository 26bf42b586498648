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
    add column deliver_at timestamptz,
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

-- Ends a delivery well, inside the transaction that holds its effects. Raises BH001 when the fence no longer
-- holds, which aborts that transaction: a stale worker cannot commit, even if its code swallows errors. Raises BH002
-- when p_mark is not what boathook.mark holds: it was set for this transaction only, so the handler has ended it.
-- "leased_by is not null" says "state = 'leased'" in words that keep the planner from walking the index of leases.
create or replace function boathook.settle(
    p_event uuid, p_ordinal integer, p_fence bigint, p_state text, p_note text, p_worker text, p_started timestamptz,
    p_mark text default null
) returns void language plpgsql as $$
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
    insert into boathook.outcome (
        event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays, note, ended_at, item_path, item_type,
        is_manual)
    values (
        d.event_id, d.ordinal, d.recipient, p_state, d.order_key, d.is_replay, d.attempts, d.replays, p_note, ended,
        d.item_path, d.item_type, d.is_manual);
    if d.order_key is not null then
        perform boathook.unblock(d.recipient, d.order_key);
    end if;
end $$;

-- An id as people see it: a prefix and 27 characters of Crockford's base 32.
create function boathook.show_id(prefix text, id uuid) returns text language sql immutable strict parallel safe as $$
    select prefix || '_' || string_agg(
        substr('0123456789abcdefghjkmnpqrstvwxyz', substr(bits, 5 * place + 1, 5)::bit(5)::integer + 1, 1), '' order by place)
    from (select '0000000' || ('x' || replace(id::text, '-', ''))::bit(128)::text as bits) as whole, generate_series(0, 26) as place
$$;

-- What show_id wrote with this prefix, in either case; null where the text is no such id.
create function boathook.read_id(prefix text, name text) returns uuid language sql immutable strict parallel safe as $$
    select string_agg(lpad(to_hex(substr(bits, 8 + 32 * part, 32)::bit(32)::bigint), 8, '0'), '' order by part)::uuid
    from (
        select string_agg((strpos('0123456789abcdefghjkmnpqrstvwxyz', digit) - 1)::bit(5)::text, '' order by place) as bits
        from regexp_split_to_table(lower(substr(name, length(prefix) + 2)), '') with ordinality as d (digit, place)
    ) as read, generate_series(0, 3) as part
    where starts_with(name, prefix || '_') and lower(substr(name, length(prefix) + 2)) ~ '^0[0-7][0-9a-hjkmnp-tv-z]{25}$'
$$;

-- The endpoint that deliveries to this recipient go to; null where it is no endpoint.
create function boathook.endpoint_of(recipient text) returns uuid language sql immutable strict parallel safe as $$
    select boathook.read_id('ep', substr(recipient, 10)) where recipient ~ '^endpoint:ep_[0-9a-hjkmnp-tv-z]{27}$'
$$;

-- The names under which events of an application are stored, given its id or uid, or a name that is neither.
create function boathook.application_names(p_application text) returns text[] language sql stable as $$
    select array[p_application] || array(
        select boathook.show_id('app', id) from boathook.application where uid = p_application and deleted_at is null)
$$;

-- Whether a recipient can be owed anything more: any handler, and an endpoint that is neither deleted nor disabled.
create function boathook.takes_deliveries(p_recipient text) returns boolean language sql stable as $$
    select not starts_with(p_recipient, 'endpoint:') or exists (
        select from boathook.endpoint e join boathook.application a on a.id = e.application_id
        where e.id = boathook.endpoint_of(p_recipient) and e.deleted_at is null and not e.is_disabled and a.deleted_at is null)
$$;

-- Who gets what is published for an application, found by id or uid: its routes and their versions as one JSON document.
-- Each version has the mark of the transaction that wrote it, as one that is rolled back gives its number to another.
-- Handlers may name an application by id, one of the default organization by uid too, and one that is not known at all.
create function boathook.routes_for(p_organization text, p_application text) returns json language sql stable as $$
    with found as materialized (
        select id, uid, routes_version || '.' || xmin::text as version, boathook.show_id('app', id) as name
        from boathook.application
        where organization = p_organization and deleted_at is null
            and (id = boathook.read_id('app', p_application) or uid = p_application)
    ),
    lines as (
        select 1 as part, recipient as first, line as second, json_build_object(
                'recipient', recipient, 'app', app, 'application', coalesce((select name from found), p_application),
                'types', types, 'filter', filter, 'order_by', order_by) as route
        from boathook.route
        where is_active and (
            application = (select name from found)
            or p_organization = 'default' and application in (p_application, (select uid from found)))
        union all
        select 2, e.id::text, 0, json_build_object(
                'recipient', 'endpoint:' || boathook.show_id('ep', e.id), 'app', '', 'application', f.name,
                'types', coalesce(e.event_types, '{*}'), 'channels', e.channels, 'filter', e.filter, 'order_by', e.order_by)
        from found f join boathook.endpoint e on e.application_id = f.id
        where e.deleted_at is null and not e.is_disabled
    )
    select json_build_object(
        'registry', (select version || '.' || xmin::text from boathook.registry),
        'application', (select row_to_json(found) from found),
        'routes', coalesce((select json_agg(route order by part, first, second) from lines), '[]'))
$$;

-- Stores a message and what it is owed, inside the publisher's transaction. The message is a JSON object; what it may
-- hold is the list of columns below, and `routes_for` gave it its application and both versions. Answers
--   accepted          it is stored
--   outdated          nothing is stored: the routes, or who bears the name, have changed; ask routes_for again
--   missing           nothing is stored: the application was deleted
--   duplicate ID      a message with this key and body is there already
--   conflict ID       one with this key is, but with another body
--   repeated ID       one with this idempotency key and fingerprint is
--   clash ID          one with this idempotency key is, made of another request
-- Versions are compared without a lock: a publisher's transaction may be long, and must not hold up a deployment. A key
-- that another transaction is about to store is waited for.
create function boathook.publish_message(p_message json, p_body bytea, p_deliveries json) returns text language plpgsql as $$
declare
    m record;
    a record;
    seen record;
    sha bytea := sha256(p_body);
    owed timestamptz := clock_timestamp();
begin
    select * into m from json_to_record(p_message) as r (
        id uuid, organization text, application uuid, uid text, name text, registry text, routes text, type text,
        dedup_key text, key uuid, replay_key uuid, fingerprint bytea, memory interval, headers json, content_type text,
        channels text[], tags text[], deliver_at timestamptz, content_until timestamptz);
    if m.registry is distinct from (select version || '.' || xmin::text from boathook.registry) then
        return 'outdated';
    end if;
    if m.application is null then
        if exists (
            select from boathook.application where organization = m.organization and uid = m.uid and deleted_at is null) then
            return 'outdated';
        end if;
    else
        select routes_version || '.' || xmin::text as version, uid, deleted_at into a
        from boathook.application where id = m.application;
        if not found or a.deleted_at is not null then
            return 'missing';
        end if;
        if a.version is distinct from m.routes or (m.uid is not null and a.uid is distinct from m.uid) then
            return 'outdated';
        end if;
    end if;
    delete from boathook.dedup where (key = m.key or replay_key = m.replay_key) and expires_at < now();
    insert into boathook.dedup (key, replay_key, event_id, body_sha256, expires_at, fingerprint)
    values (m.key, m.replay_key, m.id, sha, now() + m.memory, m.fingerprint)
    on conflict do nothing;
    if not found then
        select event_id, fingerprint into seen from boathook.dedup where replay_key = m.replay_key;
        if found then
            return case when seen.fingerprint is not distinct from m.fingerprint then 'repeated ' else 'clash ' end || seen.event_id;
        end if;
        select event_id, body_sha256 into seen from boathook.dedup where key = m.key;
        if not found then
            return 'outdated';  -- its memory has run out this moment
        end if;
        return case when seen.body_sha256 = sha then 'duplicate ' else 'conflict ' end || seen.event_id;
    end if;
    insert into boathook.event (
        id, source, application, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout,
        channels, tags, deliver_at, content_until)
    values (
        m.id, null, m.name, m.type, m.dedup_key, 'none', 'published', m.headers, m.content_type, p_body, sha,
        json_array_length(p_deliveries), m.channels, m.tags, m.deliver_at, m.content_until);
    owed := greatest(owed, m.deliver_at);
    insert into boathook.delivery (event_id, ordinal, recipient, owed_since, due_at, order_key, is_blocked)
    select m.id, u.position - 1, u.recipient, owed, owed, u.order_key,
        u.order_key is not null and exists (
            select from boathook.delivery o
            where o.recipient = u.recipient and o.order_key = u.order_key and o.state <> 'dead')
    from rows from (json_to_recordset(p_deliveries) as (recipient text, order_key text))
        with ordinality as u (recipient, order_key, position)
    order by u.position;
    return 'accepted';
end $$;
