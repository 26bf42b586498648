-- People who may sign in to the console, and the browsers in which they have.
create table boathook.operator (
    id uuid primary key,
    name text not null check (name <> ''),
    role text not null check (role in ('viewer', 'operator', 'admin')),
    password_hash text,
    subject text,
    created_at timestamptz not null default now(),
    signed_in_at timestamptz,
    disabled_at timestamptz
);
create unique index operator_name on boathook.operator (lower(name));
create unique index operator_subject on boathook.operator (subject) where subject is not null;

create table boathook.operator_session (
    token_sha256 bytea primary key check (octet_length(token_sha256) = 32),
    operator_id uuid not null references boathook.operator on delete cascade,
    created_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    expires_at timestamptz not null,
    client_address text not null,
    user_agent text not null
);
create index operator_session_of_operator on boathook.operator_session (operator_id);
create index operator_session_expiry on boathook.operator_session (expires_at);
