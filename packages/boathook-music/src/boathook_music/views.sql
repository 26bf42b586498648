-- The delivery log of the system before this one, and its functions, for programs that know their names.

create view {schema}.webhook_delivery_log as
select event.dedup_key as webhook_id,
    case when archive.event_id is not null then 'completed' when delivery.state = 'dead' then 'failed' else 'registered' end
        as status,
    event.headers::jsonb as headers, music.body_json(event.body) as payload, event.accepted_at as created_at,
    coalesce(archive.ended_at, delivery.dead_at, event.accepted_at) as updated_at
from boathook.event as event
left join lateral (
    select event_id, ended_at from boathook.delivery_archive
    where delivery_archive.event_id = event.id and recipient = 'handler:music.receive' order by ordinal desc limit 1
) as archive on true
left join lateral (
    select state, dead_at from boathook.delivery
    where delivery.event_id = event.id and recipient = 'handler:music.receive' order by ordinal desc limit 1
) as delivery on true
where event.source = 'suno'
union all
select webhook_id, status, headers, payload, created_at, updated_at from music.webhook_log as log
where not exists (select from music.callback where callback.delivery_id = log.webhook_id);

-- The functions write as their owner, and only roles that are granted them may call them.

create function {schema}.check_webhook_processed(p_webhook_id text) returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (select from music.webhook_log where webhook_id = p_webhook_id and status = 'completed')
        or exists (select from music.callback where delivery_id = p_webhook_id);
$$;

create function {schema}.register_webhook_delivery(p_webhook_id text, p_headers jsonb, p_payload jsonb) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
    if coalesce(p_webhook_id, '') = '' then
        raise exception 'p_webhook_id is empty' using errcode = '22023';
    end if;
    insert into music.webhook_log as log (webhook_id, status, headers, payload)
    values (p_webhook_id, 'registered', p_headers, p_payload)
    on conflict (webhook_id) do update
        set status = 'registered', headers = excluded.headers, payload = excluded.payload, reason = null, updated_at = now()
        where log.status = 'failed';
    return found;
end $$;

create function {schema}.complete_webhook_delivery(p_webhook_id text) returns void
language plpgsql security definer set search_path = '' as $$
begin
    update music.webhook_log set status = 'completed', reason = null, updated_at = now() where webhook_id = p_webhook_id;
    if not found then
        raise exception 'the webhook % is not registered', p_webhook_id using errcode = 'P0002';
    end if;
end $$;

create function {schema}.fail_webhook_delivery(p_webhook_id text, p_reason text) returns void
language plpgsql security definer set search_path = '' as $$
begin
    update music.webhook_log set status = 'failed', reason = p_reason, updated_at = now() where webhook_id = p_webhook_id;
    if not found then
        raise exception 'the webhook % is not registered', p_webhook_id using errcode = 'P0002';
    end if;
end $$;

create function {schema}.cleanup_old_webhook_logs(p_days integer) returns integer
language plpgsql security definer set search_path = '' as $$
declare
    gone integer;
begin
    if p_days is null or p_days < 0 then
        raise exception 'p_days is %; use 0 or more', coalesce(p_days::text, 'null') using errcode = '22023';
    end if;
    delete from music.webhook_log where status = 'completed' and updated_at < now() - make_interval(days => p_days);
    get diagnostics gone = row_count;
    return gone;
end $$;

revoke execute on function {schema}.check_webhook_processed, {schema}.register_webhook_delivery,
    {schema}.complete_webhook_delivery, {schema}.fail_webhook_delivery, {schema}.cleanup_old_webhook_logs from public;
comment on view {schema}.webhook_delivery_log is '{mark}';
comment on function {schema}.check_webhook_processed is '{mark}';
comment on function {schema}.register_webhook_delivery is '{mark}';
comment on function {schema}.complete_webhook_delivery is '{mark}';
comment on function {schema}.fail_webhook_delivery is '{mark}';
comment on function {schema}.cleanup_old_webhook_logs is '{mark}';
