-- Templates of scripts: what stands as a named placeholder is a literal of the benchmark's own.

-- name: make_partitions
-- Give each week that lies back a partition, as time would have.
do $do$
declare
    monday timestamptz;
    parent text;
    child text;
begin
    for week in reverse 5 .. 1 loop
        monday := (date_trunc('week', now() at time zone 'UTC') - make_interval(weeks => week)) at time zone 'UTC';
        foreach parent in array array['event', 'attempt', 'delivery_archive', 'side_effect', 'reply'] loop
            child := parent || '_' || to_char(monday at time zone 'UTC', 'YYYYMMDD');
            if to_regclass('boathook.' || child) is null then
                execute format(
                    'create table boathook.%%I partition of boathook.%%I for values from (%%L) to (%%L)',
                    child, parent, boathook.min_id(monday), boathook.min_id(monday + interval '7 days'));
            end if;
        end loop;
    end loop;
    perform boathook.ensure_partitions(4);
end $do$

-- name: make_functions
-- Tell ids and hashes of keys as the gateway makes them.
create function pg_temp.id_at(moment timestamptz, n bigint) returns uuid language sql immutable as $$
    select (lpad(to_hex(floor(extract(epoch from moment) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3)
        || '8' || substr(md5(n::text), 4, 15))::uuid
$$;
create function pg_temp.key_of(scope text, key text) returns uuid language sql immutable as $$
    select encode(substr(sha256(convert_to(scope, 'UTF8') || '\x00'::bytea || convert_to(key, 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- name: make_tenants
-- Set applications up, with an endpoint each.
insert into boathook.application (id, organization, uid, name)
select pg_temp.id_at(now() - make_interval(days => %(days)s), -n), 'default', 'tenant-' || n, 'Tenant ' || n
from generate_series(1, %(applications)s) as n;
insert into boathook.endpoint (id, application_id, url)
select pg_temp.id_at(now() - make_interval(days => %(days)s), -n - 1000000), id, 'https://tenant-' || n || '.example/hook'
from (select id, row_number() over (order by id) as n from boathook.application) as a;

create temporary table tenant as
select row_number() over () as place, boathook.show_id('app', a.id) as name, 'endpoint:' || boathook.show_id('ep', e.id) as recipient
from boathook.application a join boathook.endpoint e on e.application_id = a.id;

-- name: make_events
-- Store one piece of the history; every second message is the first application's.
create temporary table piece as
select n, pg_temp.id_at(moment, n) as id, moment,
    case when n %% 5 = 0 then null when n %% 10000 = 1 then 'rare' else (array['stripe', 'github', 'shop', 'slack'])[1 + n %% 4] end
        as source,
    t.name as application, coalesce(t.recipient, 'handler:' || (array['payment', 'push', 'order'])[1 + n %% 3]) as recipient,
    (array['payment.paid', 'payment.failed', 'push', 'order.created', 'order.shipped', 'invoice.paid'])[1 + n %% 6] as type,
    'evt-' || n as dedup_key,
    convert_to(format(
        '{"id":"evt-%%s","amount":%%s,"customer":"cus_%%s","note":"%%s","lines":[%%s]}', n, n * 7 %% 100000, n %% 5000,
        case when n %% 100000 = 77 then %(needle)s else md5(n::text) end, repeat('{"sku":"' || md5((n * 3)::text) || '","qty":2},', (n %% 20)::integer) || '{}'),
        'UTF8') as body
from (
    select n, now() - interval '1 second' - (%(total)s - n) * (make_interval(days => %(days)s) / %(total)s) as moment
    from generate_series(%(first)s::bigint, %(last)s::bigint) as n
) as numbered
left join tenant t on n %% 5 = 0 and t.place = case n / 5 %% 2 when 0 then 1 else 1 + n / 10 %% %(applications)s end;

insert into boathook.event (
    id, source, application, type, dedup_key, grade, origin, accepted_at, headers, content_type, body, body_sha256, fanout)
select id, source, application, type, dedup_key, case when source is null then 'none' else 'body signed' end,
    case when source is null then 'published' else 'received' end, moment, '{"content-type":"application/json"}', 'application/json',
    body, sha256(body), 1
from piece;

insert into boathook.dedup (key, event_id, body_sha256, expires_at)
select pg_temp.key_of(source, dedup_key), id, sha256(body), moment + interval '30 days'
from piece where source is not null;

insert into boathook.dedup (key, event_id, body_sha256, expires_at)
select encode(substr(sha256(convert_to('application', 'UTF8') || '\x00'::bytea || convert_to(application, 'UTF8') || '\x00'::bytea
        || convert_to(dedup_key, 'UTF8')), 1, 16), 'hex')::uuid, id, sha256(body), moment + interval '30 days'
from piece where source is null;

create temporary table owed as
select p.*,
    case when n %% 500 = 3 or n %% 2000 = 0 then 'dead' when n > %(total)s - 300 and n %% 3 = 0 then 'pending' when n > %(total)s - 20 then 'leased'
        when n %% 50 = 9 then 'ignored' else 'succeeded' end as state,
    case when n %% 500 = 3 or n %% 2000 = 0 then 3 when n %% 40 in (7, 15) then 2 else 1 end as tries
from piece p;

insert into boathook.delivery (
    event_id, ordinal, recipient, state, enqueued_at, due_at, attempts, fence, leased_by, lease_until, code, error, dead_at)
select id, 0, recipient, state, moment, case when state = 'pending' then now() + interval '1 hour' else moment end,
    case state when 'dead' then tries when 'leased' then 1 else 0 end, case state when 'dead' then tries when 'leased' then 1 else 0 end,
    case when state = 'leased' then 'worker-1' end, case when state = 'leased' then now() + interval '1 day' end,
    case when state = 'dead' then (array['BROKEN', 'TIMEOUT', 'HTTP_500'])[1 + (n / 500) %% 3] end,
    case when state = 'dead' then 'it broke at line ' || (n / 500) %% 7 end, case when state = 'dead' then moment + interval '1 minute' end
from owed where state in ('dead', 'pending', 'leased');

insert into boathook.delivery_archive (event_id, ordinal, recipient, state, is_replay, attempts, replays, note, ended_at)
select id, 0, recipient, state, false, tries, 0, case when state = 'ignored' then 'nothing to do' end, moment + interval '20 ms'
from owed where state in ('succeeded', 'ignored');

insert into boathook.attempt (
    event_id, ordinal, number, outcome, code, error, traceback, worker, started_at, ended_at, id, recipient, url, status, duration_ms,
    request_headers, response, is_manual)
select o.id, 0, number,
    case when number < tries then 'failed' when state = 'dead' then 'failed' else state end,
    case when number < tries or state = 'dead' then 'BROKEN' end, case when number < tries or state = 'dead' then 'it broke' end,
    case when application is null and (number < tries or state = 'dead') then 'Traceback (most recent call last): ...' end, 'worker-1',
    moment + (number - 1) * interval '1 second', moment + (number - 1) * interval '1 second' + interval '20 ms',
    case when application is not null then pg_temp.id_at(moment + (number - 1) * interval '1 second', -n * 4 - number) end,
    case when application is not null then recipient end, case when application is not null then 'https://' || type || '.example/hook' end,
    case when application is not null then case when number < tries or state = 'dead' then 500 else 200 end end,
    case when application is not null then (n %% 90)::integer end,
    case when application is not null then '[["webhook-id","x"],["content-type","application/json"]]'::json end,
    case when application is not null then convert_to('{"ok":true}', 'UTF8') end, case when application is not null then false end
from owed o cross join lateral generate_series(1, o.tries) as number
where state in ('succeeded', 'ignored', 'dead');

insert into boathook.conflict (
    id, event_id, source, application, dedup_key, type, grade, differs, headers, content_type, body, body_sha256)
select pg_temp.id_at(moment + interval '2 seconds', -n), id, source, application, dedup_key, type, 'body signed', 'body', '{}',
    'application/json', body || ' '::bytea, sha256(body || ' '::bytea)
from piece where source is not null and n %% 5000 = 2;

insert into boathook.rejection (
    id, source, status, reason, detail, client_address, method, url, headers, content_type, body, body_size)
select pg_temp.id_at(moment, -n), coalesce(source, 'stripe'), 401, 'signature_mismatch', 'no signature fits', '192.0.2.1', 'POST',
    '/in/stripe', '{}', 'application/json', body, octet_length(body)
from piece where n %% 1000 = 4;

insert into boathook.audit (at, actor, action, subject, note)
select moment, 'console:anna', 'event.replay', boathook.show_id('evt', id), 'note ' || n
from piece where n %% 2000 = 6;

drop table piece, owed;

-- name: make_samples
-- Tell what ten hosts have counted for as long as it is kept, in each of the steps there are.
insert into boathook.metric_sample (step_s, at, host, series, totals, is_rolled_up)
select step_s, to_timestamp(floor(extract(epoch from now()) / step_s) * step_s - n * step_s), 'host-' || host, %(series)s::json, %(totals)s::json, true
from (values (10, 10800), (120, 172800), (900, 1296000)) as kept (step_s, kept_s)
cross join lateral generate_series(1, kept_s / step_s) as n
cross join generate_series(1, 10) as host;

-- name: make_types
-- Set event types up.
insert into boathook.event_type (organization, name, description)
select 'default', 'order.made' || n, 'An order of kind ' || n from generate_series(1, 300) as n

-- name: vacuum_history
-- Bring statistics and visibility to where upkeep keeps them.
vacuum (analyze) boathook.event, boathook.attempt, boathook.delivery_archive, boathook.delivery, boathook.dedup, boathook.rejection,
    boathook.conflict, boathook.audit

-- name: vacuum_samples
-- The same of what hosts have counted.
vacuum (analyze) boathook.metric_sample
