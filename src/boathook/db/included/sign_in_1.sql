-- Users who sign in to the pages of this app.

create table {schema}.{prefix}users (
    id bigint generated always as identity primary key,
    name text not null,
    password_hash text,             -- Argon2id; null for a user without a password
    token_sha256 bytea unique,      -- of the token that the user's programs send; null for a user without one
    roles text[] not null default array[]::text[],
    language text,                  -- the user's own choice
    created_at timestamptz not null default now(),
    signed_in_at timestamptz,
    disabled_at timestamptz
);
-- Passwords are looked up by name; users who have a token only may share one.
create unique index {prefix}users_name on {schema}.{prefix}users (lower(name)) where password_hash is not null;

-- Only the hash of what the browser holds is stored.
create table {schema}.{prefix}sessions (
    token_sha256 bytea primary key,
    user_id bigint not null references {schema}.{prefix}users on delete cascade,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    client_address text not null,
    user_agent text not null
);
create index on {schema}.{prefix}sessions (user_id);
create index on {schema}.{prefix}sessions (expires_at);
