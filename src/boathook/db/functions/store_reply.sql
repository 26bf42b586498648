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
