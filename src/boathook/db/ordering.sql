-- name: unblock_lines
-- Unblocks the first delivery of each of these order keys, in sorted order, so that two transactions cannot deadlock.
select boathook.unblock(recipient, order_key)
from (select distinct * from unnest($1::text[], $2::text[]) as u (recipient, order_key)) as u
order by recipient, order_key
