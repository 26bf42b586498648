-- name: list_encrypted
-- Reads encrypted texts after a cursor: endpoints' secrets, headers, credentials and destinations, secrets added to sources, and the
-- settings of stored sources.
select kind, owner_id, number, encrypted, source
from (
    select 'endpoint_auth' as kind, id as owner_id, 0::bigint as number, encrypted_auth as encrypted, null::text as source
    from boathook.endpoint where encrypted_auth is not null and id >= $1
    union all
    select 'endpoint_destination', id, 0, encrypted_destination, null
    from boathook.endpoint where encrypted_destination is not null and id >= $1
    union all
    select 'endpoint_headers', id, 0, encrypted_headers, null
    from boathook.endpoint where encrypted_headers is not null and id >= $1
    union all
    select 'endpoint_secret', endpoint_id, id, encrypted, null
    from boathook.endpoint_secret where endpoint_id >= $1
    union all
    select 'source_secret', id, 0, encrypted, source
    from boathook.source_secret where id >= $1
    union all
    select 'source_settings', id, 0, encrypted, name
    from boathook.source where id >= $1
) as s
where (owner_id, kind, number) > ($1, $2::text, $3::bigint)
order by owner_id, kind, number
limit $4

-- name: replace_endpoint_auth
-- Stores an endpoint's re-encrypted credentials, unless they were changed meanwhile.
update boathook.endpoint set encrypted_auth = $4 where id = $1 and $2::bigint = 0 and encrypted_auth = $3

-- name: replace_endpoint_destination
-- Stores the re-encrypted secrets of an endpoint's destination, unless they were changed meanwhile.
update boathook.endpoint set encrypted_destination = $4
where id = $1 and $2::bigint = 0 and encrypted_destination = $3

-- name: replace_endpoint_headers
-- Stores an endpoint's re-encrypted headers, unless they were changed meanwhile.
update boathook.endpoint set encrypted_headers = $4 where id = $1 and $2::bigint = 0 and encrypted_headers = $3

-- name: replace_endpoint_secret
-- Stores a re-encrypted secret of an endpoint, unless it was changed meanwhile.
update boathook.endpoint_secret set encrypted = $4 where endpoint_id = $1 and id = $2 and encrypted = $3

-- name: replace_source_secret
-- Stores a re-encrypted secret of a source, unless it was changed meanwhile.
update boathook.source_secret set encrypted = $4 where id = $1 and $2::bigint = 0 and encrypted = $3

-- name: replace_source_settings
-- Stores the re-encrypted settings of a source, unless they were changed meanwhile.
update boathook.source set encrypted = $4 where id = $1 and $2::bigint = 0 and encrypted = $3
