-- What each host has counted, in steps of so many seconds; the rows of the finest step are rolled up into those of the others.
create table boathook.sample (
    step_s integer not null check (step_s > 0),
    at timestamptz not null,
    host text not null check (host <> ''),
    tally json not null,
    -- The same without names of sources and recipients, as reading many rows for a chart is to be quick.
    summary json not null,
    is_rolled_up boolean not null,
    primary key (step_s, at, host)
);
create index sample_not_rolled_up on boathook.sample (at) where not is_rolled_up;
