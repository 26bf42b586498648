-- Id to time: the millisecond at which a UUIDv7 was generated.
create function boathook.id_time(id uuid) returns timestamptz language sql immutable strict parallel safe as $$
    select to_timestamp(('x0000' || left(replace(id::text, '-', ''), 12))::bit(64)::bigint / 1000.0)
$$;
