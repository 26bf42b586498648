-- What rules look at: each host's counters and gauges, of those metrics that rules name. Finer rows are dropped soon.
create table boathook.alarm_sample (
    host text not null,
    at timestamptz not null,
    series json not null,
    primary key (host, at)
);
create index alarm_sample_at on boathook.alarm_sample (at);

-- One row while an alarm is open, and one for each that has recovered.
create table boathook.alarm (
    id uuid primary key,
    rule text not null,
    subject text not null,
    severity text not null check (severity in ('warning', 'critical')),
    state text not null check (state in ('pending', 'firing', 'clearing', 'recovered')),
    -- When the present state began.
    since timestamptz not null,
    value double precision not null,
    worst double precision not null,
    fired_at timestamptz,
    recovered_at timestamptz,
    -- When messages about it were last written; those to come are told of it by this.
    told_at timestamptz,
    is_silenced boolean not null default false,
    constraint a_pending_alarm_has_not_fired check ((state = 'pending') = (fired_at is null)),
    constraint the_recovered_have_a_time check ((state = 'recovered') = (recovered_at is not null))
);
create unique index alarm_open on boathook.alarm (rule, subject) where state <> 'recovered';
create index alarm_history on boathook.alarm (recovered_at) where state = 'recovered';

-- What a channel is to be told about an alarm, written in the transaction that moves the alarm.
create table boathook.alarm_notice (
    id bigint generated always as identity primary key,
    alarm_id uuid not null references boathook.alarm on delete cascade,
    channel text not null,
    kind text not null check (kind in ('fires', 'still', 'recovered')),
    state text not null default 'waiting' check (state in ('waiting', 'sent', 'given_up')),
    not_before timestamptz not null,
    created_at timestamptz not null default now(),
    ended_at timestamptz,
    -- The message that carries it, and until when somebody is sending that.
    message_id uuid,
    taken_until timestamptz,
    constraint what_waits_has_not_ended check ((state = 'waiting') = (ended_at is null))
);
create unique index alarm_notice_once on boathook.alarm_notice (alarm_id, channel, kind) where state = 'waiting';
create index alarm_notice_waiting on boathook.alarm_notice (channel, not_before) where state = 'waiting';
create index alarm_notice_alarm on boathook.alarm_notice (alarm_id);

-- How each channel is doing.
create table boathook.alarm_channel (
    name text primary key,
    failures integer not null default 0,
    not_before timestamptz not null default '-infinity',
    sent bigint not null default 0,
    sent_at timestamptz,
    -- When messages went out within the last hour.
    recent timestamptz[] not null default '{}',
    error text,
    error_at timestamptz
);

create table boathook.alarm_silence (
    id uuid primary key,
    rule text not null,
    subject text not null,
    note text not null,
    actor text not null,
    created_at timestamptz not null default now(),
    until timestamptz not null,
    ended_at timestamptz,
    ended_by text
);
create index alarm_silence_until on boathook.alarm_silence (until);

-- The latest look at the rules: one row.
create table boathook.alarm_round (
    is_only boolean primary key default true check (is_only),
    at timestamptz not null,
    host text not null,
    readings json not null
);
