-- Gives unsealed audit rows their position in the chain, and the hash of the previous seal with their content; returns
-- the number. Transactions that write audit rows do not seal them: a chain in these would make each wait for the
-- others.
create function boathook.seal_audit(max_rows integer) returns integer language plpgsql as $$
declare
    entry boathook.audit;
    last_place bigint;
    last_seal bytea;
    sealed integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('boathook.seal_audit', 0));
    select place, audit_head.seal into last_place, last_seal from boathook.audit_head;
    for entry in select * from boathook.audit where sealed_as is null order by id limit max_rows loop
        sealed := sealed + 1;
        last_place := coalesce(last_place, 0) + 1;
        last_seal := sha256(coalesce(last_seal, '') || boathook.audit_content(entry));
        update boathook.audit set sealed_as = last_place, seal = last_seal where id = entry.id;
    end loop;
    if sealed > 0 then
        insert into boathook.audit_head (place, seal) values (last_place, last_seal)
        on conflict (singleton) do update set place = excluded.place, seal = excluded.seal;
    end if;
    return sealed;
end $$;
