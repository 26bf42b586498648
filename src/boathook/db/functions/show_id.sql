-- The public form of an id: a prefix and 27 characters of Crockford's base 32.
create function boathook.show_id(prefix text, id uuid) returns text language sql immutable strict parallel safe as $$
    select prefix || '_' || string_agg(
        substr('0123456789abcdefghjkmnpqrstvwxyz', substr(bits, 5 * place + 1, 5)::bit(5)::integer + 1, 1), '' order by place)
    from (select '0000000' || ('x' || replace(id::text, '-', ''))::bit(128)::text as bits) as whole, generate_series(0, 26) as place
$$;
