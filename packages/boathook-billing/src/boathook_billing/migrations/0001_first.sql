create schema billing;
comment on schema billing is 'Subscription payments: the app boathook-billing.';

create table billing.users (
    id bigint generated always as identity primary key,
    email text not null check (email <> '' and email = btrim(email)),
    owner_uuid uuid unique,
    owner_id bigint unique,
    created_at timestamptz not null default now(),
    check (num_nonnulls(owner_uuid, owner_id) <= 1)
);
comment on table billing.users is 'Who can have a subscription. Rows may be inserted by any program.';
comment on column billing.users.owner_uuid is
    'The user''s id in the owner''s own table, if it is a UUID; owner_id if it is a number.';
create unique index users_email on billing.users (lower(email));

create table billing.plans (
    id text primary key,
    price numeric not null check (price >= 0),
    currency text not null,
    days integer not null check (days > 0),
    is_offered boolean not null default true,
    updated_at timestamptz not null default now()
);
comment on table billing.plans is 'A copy of [[billing.plans]] for reports; the settings are what payments are judged by.';
comment on column billing.plans.is_offered is 'False once it is gone from the settings.';

create table billing.subscriptions (
    id bigint generated always as identity primary key,
    user_id bigint not null unique references billing.users,
    status text not null default 'INACTIVE' check (status in ('INACTIVE', 'ACTIVE', 'CANCELED')),
    current_period_end timestamptz,
    active_since timestamptz,
    access_until timestamptz,
    next_step_at timestamptz,
    wake_at timestamptz,
    done_until timestamptz,
    is_planned boolean not null default false,
    uid uuid not null unique default gen_random_uuid(),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    check (status = 'INACTIVE' or current_period_end is not null),
    check ((active_since is null) = (current_period_end is null))
);
comment on table billing.subscriptions is 'One for each user who ever had a payment applied.';
comment on column billing.subscriptions.active_since is
    'When the unbroken stretch that ends with current_period_end began: days of payments before it are used up.';
comment on column billing.subscriptions.access_until is
    'Until when the user has access: the end of the period, and the days of grace of an active subscription.';
comment on column billing.subscriptions.next_step_at is 'When the next reminder or the end is due; null after the end.';
comment on column billing.subscriptions.wake_at is 'The step for which a delivery is scheduled; null until it is near.';
comment on column billing.subscriptions.done_until is
    'Steps up to this time are done, or were past when the period was set.';
create index subscriptions_status_end on billing.subscriptions (status, current_period_end);
create index subscriptions_unplanned on billing.subscriptions (id) where not is_planned;
create index subscriptions_next_step on billing.subscriptions (next_step_at) where wake_at is null;

create function billing.forget_plan() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' or new.current_period_end is distinct from old.current_period_end then
        new.access_until := new.current_period_end;
        new.done_until := now();
    elsif new.status = old.status then
        return new;
    end if;
    new.is_planned := false;
    new.wake_at := null;
    new.next_step_at := null;
    return new;
end $$;
comment on function billing.forget_plan is 'A change of the period or the status supersedes the planned steps.';
create trigger forget_plan before insert or update on billing.subscriptions
    for each row execute function billing.forget_plan();

create table billing.settings_in_force (
    name text primary key,
    value text not null
);
comment on table billing.settings_in_force is 'Settings by which rows were planned, to plan them again after a change.';

create table billing.payments (
    id bigint generated always as identity primary key,
    provider text not null,
    external_payment_id text not null,
    status text not null check (status in ('RECEIVED', 'FAILED', 'SUCCEEDED', 'REFUNDED')),
    user_id bigint references billing.users,
    email text,
    plan_id text,
    amount numeric check (amount >= 0),
    currency text,
    paid_at timestamptz,
    is_late boolean not null default false,
    problem text check (problem in ('USER_MISSING', 'UNLINKED_PAYMENT', 'AMOUNT_MISMATCH', 'PLAN_UNKNOWN')),
    subscription_applied_at timestamptz,
    subscription_id bigint references billing.subscriptions,
    applied_days integer check (applied_days > 0),
    applied_stretch timestamptz,
    reversed_at timestamptz,
    wakes integer not null default 0,
    woken_at timestamptz,
    uid uuid not null unique default gen_random_uuid(),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (provider, external_payment_id),
    check (subscription_applied_at is null or (user_id is not null and problem is null)),
    check ((subscription_applied_at is null) = (applied_days is null)),
    check (applied_stretch is null or subscription_applied_at is not null),
    check (subscription_id is null or subscription_applied_at is not null),
    check (subscription_applied_at is null or status in ('SUCCEEDED', 'REFUNDED')),
    check (reversed_at is null or (subscription_applied_at is not null and status = 'REFUNDED')),
    check (problem is null or status = 'SUCCEEDED')
);
comment on table billing.payments is 'Every payment that a provider reported, even without a known user.';
comment on column billing.payments.status is 'Only moves forward: RECEIVED, FAILED, SUCCEEDED, REFUNDED.';
comment on column billing.payments.email is 'As the provider sent it, or as linked manually.';
comment on column billing.payments.paid_at is
    'As reported; when a success without it was accepted.';
comment on column billing.payments.is_late is 'Whether the news of its success came too long after it was paid.';
comment on column billing.payments.problem is 'Why a successful payment is not applied; null where nothing is wrong.';
comment on column billing.payments.subscription_applied_at is
    'When it extended the subscription. Set once and never unset, so that it cannot be applied twice.';
comment on column billing.payments.subscription_id is 'The subscription that it extended.';
comment on column billing.payments.applied_days is 'How many days it added; what a refund takes back.';
comment on column billing.payments.applied_stretch is
    'The subscription''s active_since when it was applied: once that is another one, its days are used up.';
comment on column billing.payments.uid is 'Its id in the view `payments`; of an imported payment, the one it had.';
comment on column billing.payments.wakes is
    'How often its events were resumed after its user became known; the interval grows with each try.';
create index payments_user on billing.payments (user_id, created_at desc);
create index payments_status on billing.payments (status);
create index payments_email on billing.payments (lower(email));
create index payments_problem on billing.payments (problem) where problem is not null;

create table billing.payment_events (
    event_id uuid primary key,
    payment_id bigint not null references billing.payments on delete cascade,
    status text not null check (status in ('RECEIVED', 'FAILED', 'SUCCEEDED', 'REFUNDED')),
    status_before text check (status_before in ('RECEIVED', 'FAILED', 'SUCCEEDED', 'REFUNDED')),
    accepted_at timestamptz not null
);
comment on table billing.payment_events is 'The events of each payment, and what each reported.';
comment on column billing.payment_events.status_before is 'The payment''s status until then; null where it was unknown.';
create index payment_events_payment on billing.payment_events (payment_id);

create table billing.receipts (
    id bigint generated always as identity primary key,
    payment_id bigint not null references billing.payments on delete cascade,
    kind text not null check (kind in ('sale', 'refund')),
    refund_id text not null default '',
    external_id text not null unique,
    issues integer not null default 1,
    amount numeric not null check (amount >= 0),
    request jsonb not null,
    state text not null default 'PENDING' check (state in ('PENDING', 'DONE', 'FAILED')),
    operation text,
    error text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (payment_id, kind, refund_id)
);
comment on table billing.receipts is 'The receipts of payments and refunds at the cash desk.';
comment on column billing.receipts.refund_id is 'The provider''s id of the refund; empty for a sale, or where it has none.';
comment on column billing.receipts.external_id is 'By which the cash desk knows the request; a new one each time it is issued.';
comment on column billing.receipts.operation is 'The cash desk''s id of the operation.';
create index receipts_state on billing.receipts (state, created_at);

-- include: boathook_app_tools.imported_row 1
comment on table billing.imported_row is 'The rows that `boathook billing import` has brought, by their own keys.';

create table billing.imported_events (
    id uuid primary key,
    provider text not null,
    external_event_id text,
    external_payment_id text,
    payload jsonb,
    payload_hash text,
    signature_valid boolean,
    status text not null,
    received_at timestamptz not null,
    processed_at timestamptz,
    error_code text,
    error_message text,
    event_id uuid
);
comment on table billing.imported_events is 'Webhooks of the system before this one.';
comment on column billing.imported_events.event_id is 'The event in boathook.event that continues it, if it was not finished.';
create index imported_events_payment on billing.imported_events (external_payment_id);
create index imported_events_status on billing.imported_events (status, received_at);

create function billing.body_json(body bytea) returns jsonb language plpgsql immutable as $$
begin
    return convert_from(body, 'UTF8')::jsonb;
exception when others then
    return null;
end $$;
comment on function billing.body_json is 'A body as JSON, or null if it is none, such as a form.';
