-- name: list_latest_events
-- Reads the latest event of each source, among the latest events of all.
select distinct on (source) source, id, type
from (select id, source, type from boathook.event order by id desc limit $1) as latest
where source is not null
order by source, id desc

-- name: find_latest_event
-- Reads the latest event of one source, among the latest events of all; stops at the first that it finds.
select id, type
from (select id, source, type from boathook.event order by id desc limit $1) as latest
where source = $2
order by id desc
limit 1

-- name: list_refusals
-- Reads the latest rejection at each of these sources, and the number of rejections since an id, up to a limit.
select s.name as source, r.id, r.reason, r.detail, (
    select count(*) from (
        select from boathook.rejection c where c.source = s.name and c.id >= $2 limit $3) as counted) as lately
from unnest($1::text[]) as s (name)
left join lateral (
    select id, reason, detail from boathook.rejection where source = s.name order by id desc limit 1) as r on true
