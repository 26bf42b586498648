-- name: hear
-- Finds events of a range of ids with their bytes, oldest first, except those that were heard already.
-- $3 is who asks: the default organization has the sources and what is for a name that is no application; each has the
-- messages of its own applications. The items of a batch are looked into where their types differ.
select e.id, e.source, e.application, e.type, e.dedup_key, e.grade, e.origin, e.accepted_at, e.headers, e.content_type, e.body
from boathook.event e
where e.id >= $1 and e.id <= $2 and e.expunged_at is null
    and coalesce(
        (select a.organization from boathook.application a where a.id = boathook.read_id('app', e.application)), 'default') = $3
    and ($4::text is null or e.source = $4)
    and ($5::text is null or e.application = any ((select boathook.application_names($5))::text[]))
    and ($6::text is null or e.type like $6 or e.type = 'batch' and (
        exists (select from boathook.delivery d where d.event_id = e.id and d.item_type like $6)
        or exists (select from boathook.outcome o where o.event_id = e.id and o.item_type like $6)))
    and not exists (select from unnest($7::uuid[]) as heard (id) where heard.id = e.id)
order by e.id
limit $8
