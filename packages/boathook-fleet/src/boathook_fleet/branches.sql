-- name: watch_branches
insert into fleet.branch_watch (branch_id) select unnest($1::text[]) on conflict do nothing

-- name: read_branches
-- Returns since when each branch is watched, and when a webhook of it came last.
select branch_id, watch.since, (
    select accepted_at from fleet.change where change.branch_id = branch.branch_id and source = 'rentprog'
    order by accepted_at desc limit 1
) as last_at
from unnest($1::text[]) as branch (branch_id) left join fleet.branch_watch as watch using (branch_id) order by branch_id
