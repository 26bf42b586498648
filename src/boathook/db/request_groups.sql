-- Rejected requests and conflicts, grouped by cause. Indexes lead from one cause to the next, and within a cause by time.

-- name: list_rejections
-- Lists the groups of rejected requests that were not accepted since and match source ($1) and reason ($2), up to $3,
-- each with the number of its latest $4 in all and by hour, of which 1 is 24 hours ago.
with recursive causes as (
    (
        select source, reason, 1 as step from boathook.rejection
        where event_id is null and ($1::text is null or source = $1) and ($2::text is null or reason = $2)
        order by source, reason
        limit 1
    )
    union all
    select n.source, n.reason, c.step + 1
    from causes c
    cross join lateral (
        select source, reason from boathook.rejection
        where event_id is null and (source, reason) > (c.source, c.reason)
            and ($1::text is null or source = $1) and ($2::text is null or reason = $2)
        order by source, reason
        limit 1
    ) as n
    where c.step < $3::integer
)
select nullif(c.source, '') as source, null::text as application, c.reason as cause, f.id as first_id, l.id as newest_id,
    boathook.id_time(l.id) as last_seen, t.number, t.hours, t.numbers
from causes c
cross join lateral (
    select id from boathook.rejection
    where event_id is null and source = c.source and reason = c.reason
    order by source, reason, id
    limit 1
) as f
cross join lateral (
    select id from boathook.rejection
    where event_id is null and source = c.source and reason = c.reason
    order by source desc, reason desc, id desc
    limit 1
) as l
cross join lateral (
    select sum(number)::bigint as number, array_agg(hour) as hours, array_agg(number) as numbers
    from (
        select count(*) as number, width_bucket(id, (
            select array_agg(boathook.min_id(now() - make_interval(hours => n)) order by n desc)
            from generate_series(0, 24) as n)) as hour
        from (
            select id from boathook.rejection
            where event_id is null and source = c.source and reason = c.reason
            order by source desc, reason desc, id desc
            limit $4::integer
        ) as latest
        group by hour
    ) as by_hour
) as t

-- name: list_conflicts
-- Lists the groups of conflicts that match source ($1), application ($2) and what differs ($3), up to $4, each with the
-- number of its latest $5 in all and by hour, of which 1 is 24 hours ago.
with recursive causes as (
    (
        select coalesce(source, '') as source, coalesce(application, '') as application, differs, 1 as step
        from boathook.conflict
        where ($1::text is null or coalesce(source, '') = $1)
            and ($2::text is null or application = any ((select boathook.application_names($2))::text[]))
            and ($3::text is null or differs = $3)
        order by coalesce(source, ''), coalesce(application, ''), differs
        limit 1
    )
    union all
    select n.source, n.application, n.differs, c.step + 1
    from causes c
    cross join lateral (
        select coalesce(source, '') as source, coalesce(application, '') as application, differs
        from boathook.conflict
        where (coalesce(source, ''), coalesce(application, ''), differs) > (c.source, c.application, c.differs)
            and ($1::text is null or coalesce(source, '') = $1)
            and ($2::text is null or application = any ((select boathook.application_names($2))::text[]))
            and ($3::text is null or differs = $3)
        order by coalesce(source, ''), coalesce(application, ''), differs
        limit 1
    ) as n
    where c.step < $4::integer
)
select nullif(c.source, '') as source, nullif(c.application, '') as application, c.differs as cause, f.id as first_id,
    t.newest_id, t.last_seen, t.number, t.hours, t.numbers
from causes c
cross join lateral (
    select id from boathook.conflict
    where coalesce(source, '') = c.source and coalesce(application, '') = c.application and differs = c.differs
    order by coalesce(source, ''), coalesce(application, ''), differs, id
    limit 1
) as f
cross join lateral (
    select sum(number)::bigint as number, max(last_seen) as last_seen, (array_agg(newest_id order by hour desc))[1] as newest_id,
        array_agg(hour) as hours, array_agg(number) as numbers
    from (
        select count(*) as number, width_bucket(id, (
            select array_agg(boathook.min_id(now() - make_interval(hours => n)) order by n desc)
            from generate_series(0, 24) as n)) as hour,
            max(last_seen_at) as last_seen, (array_agg(id order by id desc))[1] as newest_id
        from (
            select id, last_seen_at from boathook.conflict
            where coalesce(source, '') = c.source and coalesce(application, '') = c.application and differs = c.differs
            order by coalesce(source, '') desc, coalesce(application, '') desc, differs desc, id desc
            limit $5::integer
        ) as latest
        group by hour
    ) as by_hour
) as t
