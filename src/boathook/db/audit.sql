-- name: insert_note
-- Notes who did what to what.
insert into boathook.audit (actor, action, subject, note) values ($1, $2, $3, $4)

-- name: find_notes
-- Finds the notes of an action on some subjects, oldest first.
select subject, note from boathook.audit where action = $1 and subject = any($2::text[]) and note is not null order by id

-- name: look_back
-- Looks at the $7 rows before a place ($5, $6), of a time ($3, $4), and returns of them those of an actor ($1) and with an action
-- like a pattern ($2), newest first, up to $8. The last row looked at is among them, `fits` or not, as the place to go on from.
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
-- Lists the actions of the $1 rows written last.
select distinct action from (select action from boathook.audit order by at desc, id desc limit $1) as those order by action

-- name: seal_rows
-- Seals the next rows that no seal holds yet; says how many.
select boathook.seal_audit($1)

-- name: read_head
-- Reads the last seal.
select place, encode(seal, 'hex') as seal from boathook.audit_head
