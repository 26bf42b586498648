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
            expires_at = excluded.expires_at, home = null
        where d.newest_key is distinct from excluded.newest_key or d.expires_at <= boathook.id_time(excluded.event_id);
        id := e.id;
        is_new := found;
        select d.event_id, d.body_sha256, d.home is not null into first_id, first_sha256, is_elsewhere
        from boathook.dedup d where d.key = e.object;
        return next;
    end loop;
end $$;
