-- name: publish_messages
-- Stores the messages of concurrent API requests, in one transaction.
select * from boathook.publish_messages(
    $1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::integer[], $8::uuid[], $9::text[],
    $10::text[], $11::text[], $12::uuid[], $13::uuid[], $14::bytea[], $15::interval[], $16::text[], $17::text[],
    $18::bytea[], $19::bytea[], $20::smallint[], $21::text[], $22::text[], $23::timestamptz[], $24::timestamptz[],
    $25::uuid[], $26::smallint[], $27::text[], $28::text[], $29::timestamptz[], $30::boolean, $31)
