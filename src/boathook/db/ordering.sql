-- name: unblock_lines
-- Lets the first delivery of each of these lines run, in the order of the lines, so that two transactions cannot wait
-- for each other in a circle.
select boathook.unblock(recipient, order_key)
from (select distinct * from unnest($1::text[], $2::text[]) as u (recipient, order_key)) as u
order by recipient, order_key
