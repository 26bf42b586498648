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
-- there are others, applications are locked, but against a move only, which waits for their publishers to end. A message
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
    has_others boolean;
    refused text[];
    homes text[];
    wanted integer;
    fresh uuid[] := '{}';
    taken uuid[] := '{}';
begin
    select version || '.' || xmin::text, exists (select from boathook.installation) into current_registry, has_others
    from boathook.route_version;
    if p_lock_timeout is not null then
        perform set_config('lock_timeout', p_lock_timeout, true);
    end if;
    perform from boathook.api_key where token_sha256 = any (t_tokens) order by id for share;
    if has_others then
        -- Not those that have moved: a steady stream of locks would keep the move waiting.
        perform from boathook.application where id = any (t_applications) and home is null order by id for key share;
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
        array_agg(a.home order by t.position)
    into refused, homes
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
    if has_others and exists (select from boathook.event where id = any (m_ids) and home is not null) then
        select boathook.take_back(array_agg(m.id), array_agg(m.key), d_events, d_ordinals, d_recipients, d_order_keys, d_due)
        into taken
        from unnest(m_targets, m_ids, m_keys) as m (target, id, key)
        where refused[m.target] is null and homes[m.target] is null;
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
        if array_remove(homes, null) <> '{}' then
            update boathook.event e set home = homes[m.target]
            from unnest(m_targets, m_ids) as m (target, id)
            where e.id = m.id and e.id = any (fresh) and homes[m.target] is not null;
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
