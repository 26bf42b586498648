-- name: insert_note
-- Records an action with its actor, subject and note.
insert into boathook.audit (actor, action, subject, note) values ($1, $2, $3, $4)

-- name: find_notes
-- Finds the notes of an action on some subjects, oldest first.
select subject, note from boathook.audit where action = $1 and subject = any($2::text[]) and note is not null order by id

-- name: look_back
-- Scans the $7 rows before a cursor ($5, $6) within a time range ($3, $4), and returns those of an actor ($1) and with
-- an action like a pattern ($2), newest first, up to $8. The last scanned row is included, whether it `fits` or not, as
-- the next cursor.
with looked as materialized (
    select id, at, actor, action, subject, note, row_number() over (order by at desc, id desc) as number
    from boathook.audit
    where at >= coalesce($3::timestamptz, '-infinity') and at <= coalesce($5::timestamptz, 'infinity')
        and at < coalesce($4::timestamptz, 'infinity') and (at, id) < (coalesce($5::timestamptz, 'infinity'), coalesce($6::bigint, 0))
    order by at desc, id desc
    limit $7
),
fitting as (
    select * from looked
    where ($1::text is null or actor = $1) and ($2::text is null or action like $2)
    order by number
    limit $8
)
select id, at, actor, action, subject, note, true as fits, number from fitting
union all
select id, at, actor, action, subject, note, false, number from looked
where number = $7::bigint and number not in (select number from fitting)
order by number

-- name: list_actions
-- Lists the actions of the $1 latest rows.
select distinct action from (select action from boathook.audit order by at desc, id desc limit $1) as those order by action

-- name: seal_rows
-- Seals the next unsealed rows; returns the number.
select boathook.seal_audit($1)

-- name: read_head
-- Reads the last seal.
select place, encode(seal, 'hex') as seal from boathook.audit_head
