-- The table of the cabinet before this one. Its article gives a Sequelize model and a query, without DDL: the table
-- "Webhook" with id, url, subscribes (an integer, not null), "userId" and "isActive"; the times are Sequelize's own.
create table {schema}."Webhook" (
    id serial primary key,
    url varchar(255),
    subscribes integer not null,
    "userId" {user_id},
    "isActive" boolean default true,
    "createdAt" timestamptz not null default now(),
    "updatedAt" timestamptz not null default now()
);
