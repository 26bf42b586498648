create table boathook.app_revision (
    app text not null check (app <> ''),
    name text not null check (name <> ''),
    sha256 bytea not null,
    applied_at timestamptz not null default now(),
    primary key (app, name)
);
