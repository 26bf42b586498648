-- name: ensure_rates
-- Adds the rates of sources that have none yet.
insert into boathook.source_rate (source)
select source from unnest($1::text[]) as wanted (source) order by source
on conflict (source) do nothing

-- name: lease_tokens
-- Charges what gateways have spent of sources' rates, and grants up to a number of tokens of each. A rate is stored as
-- one time in seconds (GCRA): tokens may be granted while that time is less than a burst ahead. What was spent is
-- charged beyond that, within bounds, so that tokens of one gateway are not granted to another as well.
with wanted as (
    select w.*, 1.0 / w.per_second as gap_s
    from unnest($1::text[], $2::double precision[], $3::integer[], $4::integer[], $5::integer[])
        as w (source, per_second, burst, spent, wanted)
    order by w.source
),
held as materialized (
    select w.*, r.now_s, greatest(r.allowed_at_s, r.now_s) + w.spent * w.gap_s as at_s
    from wanted w
    cross join lateral (
        select allowed_at_s, extract(epoch from clock_timestamp())::double precision as now_s
        from boathook.source_rate
        where source = w.source
        for update
    ) as r
),
granted as (
    select *, least(wanted, greatest(0, burst - ceil((at_s - now_s) / gap_s)))::integer as taken from held
),
kept as (
    update boathook.source_rate r
    set allowed_at_s = least(g.at_s + g.taken * g.gap_s, g.now_s + 2 * g.burst * g.gap_s + 1)
    from granted g
    where r.source = g.source
)
select source, taken from granted

-- name: count_gateways
-- Counts the gateways whose connection for heartbeats is open.
select count(*) from pg_stat_activity where datname = current_database() and application_name = $1
