-- What an error says apart from what differs each time: quoted values, numbers, ids, dates and runs of hexadecimal.
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

-- Which dead letters failed alike: those of one recipient with one code, whose errors have one shape.
create function boathook.dead_group(recipient text, code text, error text) returns uuid language sql immutable parallel safe as $$
    select encode(substr(sha256(convert_to(
        concat_ws(E'\n', recipient, coalesce(code, ''), boathook.dead_shape(error)), 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- Which place a row has in the audit's chain, and its seal: the hash of the seal before it with its own content.
alter table boathook.audit add column sealed_as bigint, add column seal bytea;
alter table boathook.audit add constraint a_sealed_row_has_a_seal check ((sealed_as is null) = (seal is null));
create unique index audit_sealed on boathook.audit (sealed_as) where sealed_as is not null;
create index audit_to_seal on boathook.audit (id) where sealed_as is null;
create index audit_by_time on boathook.audit (at, id);

-- The last seal there is, one row: without it, nobody would miss rows taken away from the end of the chain.
create table boathook.audit_head (
    is_only boolean primary key default true check (is_only),
    place bigint not null,
    seal bytea not null
);

-- What of a row of the audit is sealed, as bytes that are the same on every server.
create function boathook.audit_content(entry boathook.audit) returns bytea language sql stable as $$
    select convert_to(
        json_build_array(
            entry.id, (extract(epoch from entry.at) * 1000000)::bigint, entry.actor, entry.action, entry.subject, entry.note)::text,
        'UTF8')
$$;

-- Gives rows of the audit that have none their place in the chain, and the hash of the seal before them with their content;
-- says how many. Those who write the audit know nothing of it: a chain that they kept would make each wait for the other.
create function boathook.seal_audit(most integer) returns integer language plpgsql as $$
declare
    entry boathook.audit;
    last_place bigint;
    last_seal bytea;
    sealed integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('boathook.seal_audit', 0));
    select place, audit_head.seal into last_place, last_seal from boathook.audit_head;
    for entry in select * from boathook.audit where sealed_as is null order by id limit most loop
        sealed := sealed + 1;
        last_place := coalesce(last_place, 0) + 1;
        last_seal := sha256(coalesce(last_seal, '') || boathook.audit_content(entry));
        update boathook.audit set sealed_as = last_place, seal = last_seal where id = entry.id;
    end loop;
    if sealed > 0 then
        insert into boathook.audit_head (place, seal) values (last_place, last_seal)
        on conflict (is_only) do update set place = excluded.place, seal = excluded.seal;
    end if;
    return sealed;
end $$;
