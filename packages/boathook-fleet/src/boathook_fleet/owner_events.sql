-- name: read_booking
select booking.*, car.number as car_number
from fleet.bookings as booking left join fleet.cars as car on car.id = booking.car_id where booking.id = $1

-- name: take_late
-- Marks the bookings that are late for the first time since they were to end, and returns them; those that are being
-- written are left for the next call.
with late as (
    select id from fleet.bookings
    where ends_at between now() - interval '7 days' and now() - make_interval(secs => $1) and deleted_at is null
        and state = any ($2) and late_reported_for is distinct from ends_at
    order by ends_at limit $3 for update skip locked
)
update fleet.bookings as booking set late_reported_for = booking.ends_at from late where booking.id = late.id
returning booking.*, (select number from fleet.cars where cars.id = booking.car_id) as car_number
