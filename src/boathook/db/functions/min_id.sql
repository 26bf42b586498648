-- Time to id: the smallest UUIDv7 of a time.
create function boathook.min_id(moment timestamptz) returns uuid language sql immutable strict parallel safe as $$
    select (lpad(to_hex(greatest(0, floor(extract(epoch from moment) * 1000)::bigint)), 12, '0') || '00000000000000000000')::uuid
$$;
