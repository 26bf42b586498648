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
