-- name: list_latest
select feed.entity, feed.entity_id as id, feed.at, feed.action,
    nullif(feed.description, feed.entity || ' ' || feed.entity_id || ': ' || feed.action) as description, coalesce(car.number, of_booking.number) as number,
    coalesce(car.state, booking.state) as state
from fleet.feed
left join fleet.cars as car on feed.entity = 'car' and car.id = feed.entity_id
left join fleet.bookings as booking on feed.entity = 'booking' and booking.id = feed.entity_id
left join fleet.cars as of_booking on of_booking.id = booking.car_id
where feed.entity in ('car', 'booking') order by feed.version desc limit $1

-- name: search
-- Finds by an id, or by a part of a number plate in capitals without spaces and dashes.
with found_car as (
    select * from fleet.cars
    where id = $1 or $2 <> '' and position($2 in upper(regexp_replace(number, '[^[:alnum:]]', '', 'g'))) > 0
    order by updated_at desc limit $3
)
select * from (
    select 'car' as entity, id, updated_at as at, null as action, model as description, number, state from found_car
    union all
    select 'booking', booking.id, booking.updated_at, null, null, car.number, booking.state
    from fleet.bookings as booking left join fleet.cars as car on car.id = booking.car_id
    where booking.id = $1 or booking.car_id in (select id from found_car)
) as each order by entity = 'booking', at desc limit $3

-- name: read_car
select car.*, branch.name as branch_name, null as employee_name, null as client_name, (
    select coalesce(array_agg(id order by starts_at desc nulls last), '{}') from (
        select id, starts_at from fleet.bookings where car_id = car.id order by starts_at desc nulls last limit 20
    ) as latest
) as bookings
from fleet.cars as car left join fleet.branches as branch on branch.id = car.branch_id where car.id = $1

-- name: read_booking
select booking.*, '{}'::text[] as bookings, car.number, branch.name as branch_name, employee.name as employee_name, client.name as client_name
from fleet.bookings as booking
left join fleet.cars as car on car.id = booking.car_id
left join fleet.branches as branch on branch.id = booking.branch_id
left join fleet.employees as employee on employee.id = booking.employee_id
left join fleet.clients as client on client.id = booking.client_id
where booking.id = $1

-- name: read_changes
-- Returns the latest changes in the order in which they are applied, each with its event's public id, and who made it.
select * from (
    select change.*, case when source <> 'import' then fleet.public_id('evt', event_id) end as event,
        coalesce(actor, employee.name, change.data ->> 'user_id') as who,
        nullif(description, entity || ' ' || entity_id || ': ' || action) as sentence, count(*) over () as total
    from fleet.change left join fleet.employees as employee on employee.id = change.data ->> 'user_id'
    where entity = $1 and entity_id = $2
    order by stamp desc, accepted_at desc limit $3
) as change order by {order}
