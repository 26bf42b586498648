-- name: publish_messages
-- Stores the messages of concurrent API requests, in one transaction.
select * from boathook.publish_messages(
    $1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::integer[], $8::uuid[], $9::text[],
    $10::text[], $11::text[], $12::uuid[], $13::uuid[], $14::bytea[], $15::bytea[], $16::interval[], $17::text[],
    $18::text[], $19::bytea[], $20::bytea[], $21::smallint[], $22::text[], $23::text[], $24::timestamptz[],
    $25::timestamptz[], $26::uuid[], $27::smallint[], $28::text[], $29::text[], $30::timestamptz[], $31::boolean, $32)
