-- name: insert_rejections
-- Stores rejected requests; each array contains one column.
insert into boathook.rejection
    (id, source, status, reason, detail, client_address, method, url, headers, content_type, body, body_size)
select * from unnest(
    $1::uuid[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::json[],
    $10::text[], $11::bytea[], $12::bigint[])
on conflict (id) do nothing;
