-- name: list_sealed
-- Reads what is sealed from a place on: endpoints' secrets, headers and credentials, and secrets added to sources.
select kind, owner_id, number, sealed, source
from (
    select 'endpoint_auth' as kind, id as owner_id, 0::bigint as number, sealed_auth as sealed, null::text as source
    from boathook.endpoint where sealed_auth is not null and id >= $1
    union all
    select 'endpoint_headers', id, 0, sealed_headers, null
    from boathook.endpoint where sealed_headers is not null and id >= $1
    union all
    select 'endpoint_secret', endpoint_id, id, sealed, null
    from boathook.endpoint_secret where endpoint_id >= $1
    union all
    select 'source_secret', id, 0, sealed, source
    from boathook.source_secret where id >= $1
) as s
where (owner_id, kind, number) > ($1, $2::text, $3::bigint)
order by owner_id, kind, number
limit $4

-- name: replace_endpoint_auth
-- Seals an endpoint's credentials anew, unless they were changed meanwhile.
update boathook.endpoint set sealed_auth = $4 where id = $1 and $2::bigint = 0 and sealed_auth = $3

-- name: replace_endpoint_headers
-- Seals an endpoint's headers anew, unless they were changed meanwhile.
update boathook.endpoint set sealed_headers = $4 where id = $1 and $2::bigint = 0 and sealed_headers = $3

-- name: replace_endpoint_secret
-- Seals a secret of an endpoint anew, unless it was changed meanwhile.
update boathook.endpoint_secret set sealed = $4 where endpoint_id = $1 and id = $2 and sealed = $3

-- name: replace_source_secret
-- Seals a secret of a source anew, unless it was changed meanwhile.
update boathook.source_secret set sealed = $4 where id = $1 and $2::bigint = 0 and sealed = $3
