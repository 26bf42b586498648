-- name: add_error
insert into fleet.error_log (phase, kind, code, error, number, payload, meta, event_id, entity, entity_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: list_errors
select * from fleet.error_log where ($1::text is null or phase = $1) and ($2::text is null or kind = $2)
    and ($3::text is null or code = $3) order by id desc limit $4

-- name: count_errors
select phase, sum(number) as number from fleet.error_log
where created_at > now() - make_interval(secs => $1) group by phase
