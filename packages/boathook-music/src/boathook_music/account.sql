-- name: claim_request
insert into music.credit (asked_at) values (now())
on conflict (is_only) do update set asked_at = now() where credit.asked_at <= now() - $1 * interval '1 second'
returning true;

-- name: note_credits
update music.credit set credits = $1, read_at = now(), error = null;

-- name: note_failure
update music.credit set error = $1;
