-- The group of a dead letter: same recipient, same code, and errors of the same shape.
create function boathook.dead_group(recipient text, code text, error text) returns uuid language sql immutable parallel safe as $$
    select encode(substr(sha256(convert_to(
        concat_ws(E'\n', recipient, coalesce(code, ''), boathook.dead_shape(error)), 'UTF8')), 1, 16), 'hex')::uuid
$$;
