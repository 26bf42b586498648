-- Webhooks of this app's users. Each is one endpoint of boathook's. types has one bit for each kind of events.

create table {schema}.{prefix}webhooks (
    id bigint generated always as identity primary key,
    user_id bigint not null references {schema}.{prefix}users,
    url text not null,
    types bigint not null check (types >= 0),
    is_active boolean not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index on {schema}.{prefix}webhooks (user_id, id);
