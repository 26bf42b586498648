-- Parses the output of show_id with this prefix, in either case; null if the text is not such an id.
create function boathook.read_id(prefix text, name text) returns uuid language sql immutable strict parallel safe as $$
    select string_agg(lpad(to_hex(substr(bits, 8 + 32 * part, 32)::bit(32)::bigint), 8, '0'), '' order by part)::uuid
    from (
        select string_agg((strpos('0123456789abcdefghjkmnpqrstvwxyz', digit) - 1)::bit(5)::text, '' order by place) as bits
        from regexp_split_to_table(lower(substr(name, length(prefix) + 2)), '') with ordinality as d (digit, place)
    ) as read, generate_series(0, 3) as part
    where starts_with(name, prefix || '_') and lower(substr(name, length(prefix) + 2)) ~ '^0[0-7][0-9a-hjkmnp-tv-z]{25}$'
$$;
