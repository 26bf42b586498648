-- Requests that come twice are compared as they are understood. What an older version stored has no canonical form and is
-- compared as it is written, and so is what it asks: it passes none, and reads the fingerprint that is stored as before.
alter table boathook.dedup add column canonical bytea;
alter table boathook.idempotency add column canonical bytea check (octet_length(canonical) = 32);

-- Stores a message and what it is owed, inside the publisher's transaction. The message is a JSON object; what it may
-- hold is the list of columns below, and `routes_for` gave it its application and both versions. Answers
--   accepted          it is stored
--   outdated          nothing is stored: the routes, or who bears the name, have changed; ask routes_for again
--   missing           nothing is stored: the application was deleted
--   duplicate ID      a message with this key and body is there already
--   conflict ID       one with this key is, but with another body
--   repeated ID       one with this idempotency key is, made of the same request: by its canonical form, or as it is
--                     written where an older version knew only that
--   clash ID          one with this idempotency key is, made of another request
-- Versions are compared without a lock: a publisher's transaction may be long, and must not hold up a deployment. A key
-- that another transaction is about to store is waited for.
create or replace function boathook.publish_message(p_message json, p_body bytea, p_deliveries json) returns text language plpgsql as $$
declare
    m record;
    a record;
    seen record;
    sha bytea := sha256(p_body);
    owed timestamptz := clock_timestamp();
begin
    select * into m from json_to_record(p_message) as r (
        id uuid, organization text, application uuid, uid text, name text, registry text, routes text, type text,
        dedup_key text, key uuid, replay_key uuid, fingerprint bytea, canonical bytea, memory interval, headers json, content_type text,
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
    insert into boathook.dedup (key, replay_key, event_id, body_sha256, expires_at, fingerprint, canonical)
    values (m.key, m.replay_key, m.id, sha, now() + m.memory, m.fingerprint, m.canonical)
    on conflict do nothing;
    if not found then
        select event_id, coalesce(canonical = m.canonical, fingerprint is not distinct from m.fingerprint) as is_same
        into seen from boathook.dedup where replay_key = m.replay_key;
        if found then
            return case when seen.is_same then 'repeated ' else 'clash ' end || seen.event_id;
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
