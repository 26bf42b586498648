-- include: sign_in 1 staff_

create table billing.payment_notes (
    id bigint generated always as identity primary key,
    payment_id bigint not null references billing.payments on delete cascade,
    author text not null,
    action text not null check (action in ('linked', 'refunded', 'reissued', 'note')),
    text text not null,
    noted_at timestamptz not null default now()
);
comment on table billing.payment_notes is 'What operators have done with payments.';
comment on column billing.payment_notes.author is 'The staff''s name; "command" for the command line.';
create index payment_notes_payment on billing.payment_notes (payment_id);
