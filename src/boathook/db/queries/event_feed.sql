-- name: find_matching
-- Finds the ids of events within a range, oldest first, and the size of their bodies. $3 is the requesting
-- organization. Only batches can have items with other types.
select e.id, octet_length(e.body) as size
from boathook.event e
where e.id >= $1 and e.id <= $2 and e.expunged_at is null
    and {organization} = $3
    and ($4::text is null or e.source = $4)
    and ($5::text is null or e.application = any ((select boathook.application_names($5))::text[]))
    and ($6::text is null or e.type like $6 or e.type = 'batch' and (
        exists (select from boathook.delivery d where d.event_id = e.id and d.item_type like $6)
        or exists (select from boathook.delivery_archive o where o.event_id = e.id and o.item_type like $6)))
order by e.id
limit $7

-- name: read_events
-- Reads events with their bodies, oldest first.
select {stored_event}
from boathook.event
where id = any ($1::uuid[])
order by id
