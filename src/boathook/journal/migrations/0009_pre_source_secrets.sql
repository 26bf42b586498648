-- Secrets of sources that operators have added to those of boathook.toml; sealed for the source and this row alone.
create table boathook.source_secret (
    id uuid primary key,
    source text not null check (source <> ''),
    sealed bytea not null,
    note text not null default '',
    added_by text not null,
    added_at timestamptz not null default now(),
    ends_at timestamptz
);
create index source_secret_of_source on boathook.source_secret (source, id);
