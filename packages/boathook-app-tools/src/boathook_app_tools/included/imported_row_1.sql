create table {schema}.imported_row (
    table_name text not null,
    source_key text not null,
    target_key text not null,
    source_sha256 bytea not null,
    target_sha256 bytea not null,
    imported_at timestamptz not null default now(),
    primary key (table_name, source_key),
    unique (table_name, target_key)
);
