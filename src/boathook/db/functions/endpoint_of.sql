-- The endpoint of a recipient; null if the recipient is not an endpoint.
create function boathook.endpoint_of(recipient text) returns uuid language sql immutable strict parallel safe as $$
    select boathook.read_id('ep', substr(recipient, 10)) where recipient ~ '^endpoint:ep_[0-9a-hjkmnp-tv-z]{27}$'
$$;
