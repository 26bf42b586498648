-- The cabinet: its users with what they own, what is being done for them, and where they want to hear of it.

create schema cashdesk;

-- include: sign_in 1

alter table cashdesk.users
    add owner_uuid uuid unique,     -- the user's id in the owner's own system, if it is a UUID;
    add owner_id bigint unique,     -- or a number
    add check (num_nonnulls(owner_uuid, owner_id) <= 1);

-- The rows that `boathook cashdesk import` has brought, by their own keys.
-- include: boathook_app_tools.imported_row 1

-- Every object has a revision, 1 when it is made and one more with each change, so that a consumer that gets changes out of
-- order knows which is the latest. Keys with user_id in them keep one user's objects from pointing at another's.

create table cashdesk.products (
    id bigint generated always as identity primary key,
    user_id bigint not null references cashdesk.users,
    name text not null,
    price bigint not null check (price >= 0),
    vat text not null,
    barcode text,
    revision bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (user_id, id)
);

create table cashdesk.devices (
    id bigint generated always as identity primary key,
    user_id bigint not null references cashdesk.users,
    serial text not null,
    model text not null,
    name text not null,
    revision bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (user_id, id),
    unique (user_id, serial)
);

-- Numbers of fiscal documents, which have no gaps within a device.
create table cashdesk.documents (
    device_id bigint primary key references cashdesk.devices on delete cascade,
    latest bigint not null
);

create table cashdesk.shifts (
    id bigint generated always as identity primary key,
    user_id bigint not null,
    device_id bigint not null,
    cashier text not null,
    opened_at timestamptz not null default now(),
    closed_at timestamptz,
    revision bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (user_id, id),
    foreign key (user_id, device_id) references cashdesk.devices (user_id, id)
);
create unique index one_open_shift on cashdesk.shifts (user_id, device_id) where closed_at is null;

create table cashdesk.receipts (
    id bigint generated always as identity primary key,
    user_id bigint not null,
    shift_id bigint not null,
    external_id text,
    kind text not null check (kind in ('sale', 'refund')),
    payment text not null check (payment in ('cash', 'card')),
    tax_mode text,
    email text,
    phone text,
    items jsonb not null,
    total bigint not null check (total >= 0),
    state text not null default 'PENDING' check (state in ('PENDING', 'DONE', 'FAILED')),
    document bigint,
    sign text,
    error text,
    revision bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (user_id, id),
    unique (user_id, external_id),
    foreign key (user_id, shift_id) references cashdesk.shifts (user_id, id)
);
create index on cashdesk.receipts (user_id, shift_id);

create table cashdesk.encashments (
    id bigint generated always as identity primary key,
    user_id bigint not null,
    shift_id bigint not null,
    kind text not null check (kind in ('deposit', 'withdrawal')),
    amount bigint not null check (amount > 0),
    comment text not null,
    revision bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (user_id, id),
    foreign key (user_id, shift_id) references cashdesk.shifts (user_id, id)
);
create index on cashdesk.encashments (user_id, shift_id);

create table cashdesk.operations (
    id bigint generated always as identity primary key,
    user_id bigint not null,
    receipt_id bigint not null,
    kind text not null default 'receipt.fiscalise',
    state text not null default 'PENDING' check (state in ('PENDING', 'DONE', 'FAILED')),
    error text,
    finished_at timestamptz,
    revision bigint not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (user_id, id),
    foreign key (user_id, receipt_id) references cashdesk.receipts (user_id, id)
);
create index on cashdesk.operations (user_id, receipt_id);

-- include: webhooks 1
