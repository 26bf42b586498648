-- name: lock_evaluation
-- Locks the evaluation of rules until the transaction ends, and returns the time.
select clock_timestamp() as now from (select pg_advisory_xact_lock(hashtextextended('boathook.alerts', 0))) as locked

-- fragment: subject_name
-- What the subject of alert a is called: of an endpoint its description, uid or host, and its application, as a URL may
-- contain secrets; of a group of dead letters its code and recipient.
coalesce((
    select coalesce(nullif(p.description, ''), p.uid, substring(p.url from '^[a-z]+://(?:[^/@]*@)?([^/?#]+)'))
        || ' of ' || o.name
    from boathook.endpoint p join boathook.application o on o.id = p.application_id
    where p.id = boathook.endpoint_of(case when a.subject ^@ 'ep_' then 'endpoint:' || a.subject else a.subject end)
), case when a.subject ^@ 'grp_' then (
    select d.code || ' of ' || d.recipient from boathook.delivery d
    where d.state = 'dead' and boathook.dead_group(d.recipient, d.code, d.error) = boathook.read_id('grp', a.subject)
    limit 1
) end, case a.subject when 'endpoint' then 'all endpoints' else '' end) as name

-- name: list_open
-- Reads the alerts that have not recovered, critical ones first.
select a.*, {subject_name} from boathook.alert a
where state <> 'recovered'
order by severity = 'critical' desc, fired_at desc nulls last, id desc

-- name: list_ended
-- Reads the alerts that recovered last; those before a time for the next page.
select a.*, {subject_name} from boathook.alert a
where state = 'recovered' and recovered_at < coalesce($1::timestamptz, 'infinity')
order by recovered_at desc, id desc
limit $2

-- name: insert_alert
-- Inserts an alert.
insert into boathook.alert (
    id, rule, subject, severity, state, since, value, worst, fired_at, notified_at, is_silenced, details)
values ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9, $10, $11)
on conflict (rule, subject) where state <> 'recovered' do nothing

-- name: move_alert
-- Updates an alert.
update boathook.alert
set severity = $2, state = $3, since = $4, value = $5, worst = $6, fired_at = $7, recovered_at = $8, notified_at = $9,
    is_silenced = $10, details = $11
where id = $1

-- name: drop_alert
-- Deletes an alert that never fired.
delete from boathook.alert where id = $1

-- name: drop_old
-- Deletes alerts that recovered before a time, in batches.
delete from boathook.alert where id in (
    select id from boathook.alert where state = 'recovered' and recovered_at < $1 order by recovered_at limit 1000)

-- name: list_silences
-- Reads the silences in force, and those that ended after a time.
select * from boathook.alert_silence
where coalesce(ended_at, until) > $1
order by until desc, id desc
limit 500

-- name: page_silences
-- Reads a page of silences, newest first.
select * from boathook.alert_silence
where ($1 or (ended_at is null and until > clock_timestamp())) and ($2::uuid is null or id < $2)
order by id desc
limit $3

-- name: insert_silence
-- Inserts a silence.
insert into boathook.alert_silence (id, rule, subject, note, actor, until)
values ($1, $2, $3, $4, $5, $6)
returning *

-- name: end_silence
-- Ends a silence that is in force.
update boathook.alert_silence
set ended_at = clock_timestamp(), ended_by = $2
where id = $1 and ended_at is null and until > clock_timestamp()
returning *

-- name: write_round
-- Stores the result of an evaluation over the previous one.
insert into boathook.alert_evaluation (at, host, readings) values ($1, $2, $3)
on conflict (singleton) do update set at = excluded.at, host = excluded.host, readings = excluded.readings

-- name: read_round
-- Reads the result of the latest evaluation.
select at, host, readings::text as readings from boathook.alert_evaluation

-- name: count_dead
-- Counts undecided dead letters of known recipients and of those in the latest twenty thousand dead letters. A known
-- recipient is counted however old its dead letters are and however many others have.
with latest as (
    select recipient, count(*) as number
    from (select recipient from boathook.delivery where state = 'dead' order by dead_at desc limit 20000) as died
    group by recipient
    order by number desc, recipient
    limit $2
)
select u.recipient as subject, d.number::float8 as value
from (select recipient from latest union select unnest($1::text[])) as u
cross join lateral (
    select count(*) as number
    from (select from boathook.delivery where recipient = u.recipient and state = 'dead' limit 10000) as undecided
) as d
where d.number > 0
order by value desc, subject

-- name: count_causes
-- Counts the dead letters of one cause that died within $2 seconds: of known groups, and of those of the latest thousand.
-- Only these are grouped, because the group is computed from the error.
with latest as (
    select key, count(*) as number
    from (
        select boathook.dead_group(recipient, code, error) as key
        from (
            select recipient, code, error from boathook.delivery
            where state = 'dead' and dead_at >= now() - make_interval(secs => $2)
            order by dead_at desc
            limit 1000
        ) as died
    ) as grouped
    group by key
    order by number desc, key
    limit $3
)
select boathook.show_id('grp', u.key) as subject, d.number::float8 as value
from (select key from latest union select boathook.read_id('grp', shown) from unnest($1::text[]) as k (shown)) as u (key)
cross join lateral (
    select count(*) as number
    from (
        select from boathook.delivery
        where state = 'dead' and boathook.dead_group(recipient, code, error) = u.key
            and dead_at >= now() - make_interval(secs => $2)
        limit 10000
    ) as those
) as d
where d.number > 0
order by value desc, subject

-- name: count_unhandled
-- Counts unhandled events accepted within some seconds, by source or name, of the latest twenty thousand.
select subject, count(*)::float8 as value
from (
    select subject from boathook.unhandled
    where event_id >= boathook.min_id(now() - make_interval(secs => $1))
    order by event_id desc
    limit 20000
) as latest
group by subject
order by value desc, subject
limit $2

-- name: count_repeated
-- Counts the events of each signed body within some seconds, of the latest twenty thousand that repeat one, and returns the
-- largest count of each source. The first event of a body counts if it is as recent.
select source as subject, max(number)::float8 as value
from (
    select source,
        count(*) + (same_body_as >= boathook.min_id(now() - make_interval(secs => $1)))::integer as number
    from (
        select source, same_body_as from boathook.event
        where same_body_as is not null and id >= boathook.min_id(now() - make_interval(secs => $1))
        order by id desc
        limit 20000
    ) as latest
    group by source, same_body_as
) as bodies
group by source
order by value desc, source
limit $2

-- name: count_fired
-- Counts the signals of these rules into the burst of their subject, those since it was last resolved only. A burst that
-- was over when the subject was fired again starts again at one. The lock of the evaluation keeps two from counting at once.
with span as (
    select * from unnest($1::text[], $2::float8[]) as s (rule, over_s)
),
taken as (
    delete from boathook.alert_signal
    where id in (select id from boathook.alert_signal where rule = any ($1) order by id limit $3)
    returning *
),
resolved as (
    select rule, subject, max(id) as id from taken where is_resolved group by rule, subject
),
fired as (
    select t.rule, t.subject, count(*) as number, min(t.at) as first_at, max(t.at) as last_at,
        (array_agg(t.details order by t.id desc))[1] as details, r.id is not null as is_resolved
    from taken t left join resolved r on r.rule = t.rule and r.subject = t.subject
    where not t.is_resolved and (r.id is null or t.id > r.id)
    group by t.rule, t.subject, r.id
),
ended as (
    delete from boathook.alert_burst b using resolved r
    where b.rule = r.rule and b.subject = r.subject
        and not exists (select from fired f where f.rule = b.rule and f.subject = b.subject)
)
insert into boathook.alert_burst as b (rule, subject, number, last_at, details)
select f.rule, f.subject,
    f.number + case
        when f.is_resolved or k.last_at + make_interval(secs => s.over_s) < f.first_at then 0
        else coalesce(k.number, 0)
    end,
    f.last_at, f.details
from fired f
join span s on s.rule = f.rule
left join boathook.alert_burst k on k.rule = f.rule and k.subject = f.subject
on conflict (rule, subject) do update set number = excluded.number, last_at = excluded.last_at, details = excluded.details

-- name: end_bursts
-- Deletes the bursts that are over, and those of other rules.
delete from boathook.alert_burst b
where not exists (
    select from unnest($1::text[], $2::float8[]) as s (rule, over_s)
    where s.rule = b.rule and b.last_at > now() - make_interval(secs => s.over_s))

-- name: drop_signals
-- Deletes the old signals of other rules.
delete from boathook.alert_signal where rule <> all ($1::text[]) and at < now() - interval '1 day'

-- name: list_fired
-- Lists the bursts of a rule: those of known subjects, and the largest others.
(select subject, number::float8 as number, last_at, details::text as details
from boathook.alert_burst where rule = $1 and subject = any ($2::text[]))
union all
(select subject, number, last_at, details::text
from boathook.alert_burst where rule = $1 and subject <> all ($2::text[])
order by number desc, subject
limit $3)
order by number desc, subject

-- name: list_disabled
-- Reads the endpoints that boathook has disabled, the latest first.
select boathook.show_id('ep', id) as subject, 1::float8 as value
from boathook.endpoint
where is_disabled and disabled_because <> 'manual' and deleted_at is null
order by disabled_at desc
limit $1

-- name: list_paused
-- Reads the endpoints whose circuit breaker is open, those of the most pauses first.
select boathook.show_id('ep', p.id) as subject, 1::float8 as value
from boathook.endpoint_health h
join boathook.endpoint p on p.id = h.endpoint_id
where h.open_until is not null and not p.is_disabled and p.deleted_at is null
order by h.pauses desc, p.id
limit $1

-- name: insert_notices
-- Queues notifications about an alert for channels; one that is already waiting is not queued twice.
insert into boathook.alert_notification (alert_id, channel, kind, not_before)
select $1, u.channel, $3, u.not_before
from unnest($2::text[], $4::timestamptz[]) as u (channel, not_before)
on conflict (alert_id, channel, kind) where state = 'waiting' do nothing

-- name: find_due_channels
-- Reads the channels that have something to send now: the oldest notification has waited long enough, the channel is
-- not paused, and it had neither a message very recently nor too many within the hour.
select n.channel
from boathook.alert_notification n
left join boathook.alert_channel c on c.name = n.channel
where n.state = 'waiting' and n.not_before <= now() and n.channel = any ($1)
    and (n.taken_until is null or n.taken_until < now())
    and (c.name is null or (
        c.not_before <= now()
        and (c.sent_at is null or c.sent_at <= now() - make_interval(secs => $3))
        and (select count(*) from unnest(c.recent) as r (at) where r.at > now() - interval '1 hour') < $4))
group by n.channel
having min(n.created_at) <= now() - make_interval(secs => $2) or bool_or(n.message_id is not null)
order by n.channel

-- name: take_notices
-- Claims the next notifications of a channel for some seconds: a message that was claimed before, else all that wait.
with candidate as (
    select id, message_id from boathook.alert_notification
    where channel = $1 and state = 'waiting' and not_before <= now() and (taken_until is null or taken_until < now())
    order by message_id nulls last, id
    limit 500
    for update skip locked
), begun as (
    select message_id from candidate where message_id is not null limit 1
), taken as (
    update boathook.alert_notification n
    set message_id = coalesce((select message_id from begun), $2), taken_until = now() + make_interval(secs => $3)
    from candidate c
    where n.id = c.id and c.message_id is not distinct from (select message_id from begun)
    returning n.id, n.alert_id, n.kind, n.message_id
)
select t.kind, t.message_id, a.*, {subject_name}
from taken t join boathook.alert a on a.id = t.alert_id
order by a.severity, a.rule, a.subject, t.id

-- name: end_sent
-- Records that a message was sent.
with sent as (
    update boathook.alert_notification
    set state = 'sent', ended_at = clock_timestamp(), taken_until = null
    where message_id = $1 and state = 'waiting'
)
insert into boathook.alert_channel as c (name, sent, sent_at, recent)
values ($2, 1, clock_timestamp(), array[clock_timestamp()])
on conflict (name) do update
set sent = c.sent + 1, sent_at = clock_timestamp(), failures = 0, not_before = '-infinity',
    recent = array(select r.at from unnest(c.recent) as r (at) where r.at > now() - interval '1 hour') || clock_timestamp()

-- name: end_failed
-- Records that a message was not sent, gives up notifications that are too old, and pauses the channel.
with freed as (
    update boathook.alert_notification
    set taken_until = null, state = case when created_at < now() - make_interval(secs => $4) then 'given_up' else state end,
        ended_at = case when created_at < now() - make_interval(secs => $4) then clock_timestamp() end
    where message_id = $1 and state = 'waiting'
    returning state
), paused as (
    insert into boathook.alert_channel as c (name, failures, not_before, error, error_at)
    values ($2, 1, now() + make_interval(secs => $5), $3, clock_timestamp())
    on conflict (name) do update
    set failures = c.failures + 1, error = excluded.error, error_at = excluded.error_at,
        not_before = now() + make_interval(secs => least($5 * 2 ^ least(c.failures, 10), $6))
)
select count(*) filter (where state = 'given_up') from freed

-- name: list_channels
-- Reads the state of each channel and the number of its waiting notifications.
select coalesce(c.name, w.channel) as name, coalesce(c.failures, 0) as failures, coalesce(c.sent, 0) as sent, c.sent_at,
    c.error, c.error_at, nullif(c.not_before, '-infinity') as not_before, coalesce(w.number, 0) as waiting
from boathook.alert_channel c
full join (
    select channel, count(*) as number from boathook.alert_notification where state = 'waiting' group by channel
) as w on w.channel = c.name
order by 1
