-- Creates the weekly partitions (Monday to Monday, UTC) from this week to weeks_ahead weeks ahead; returns the number
-- created.
create function boathook.ensure_partitions(weeks_ahead integer) returns integer language plpgsql as $$
declare
    monday timestamptz;
    parent text;
    child text;
    made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('boathook.ensure_partitions', 0));
    for week in 0 .. weeks_ahead loop
        monday := (date_trunc('week', now() at time zone 'UTC') + make_interval(weeks => week)) at time zone 'UTC';
        foreach parent in array array['event', 'event_cause', 'attempt', 'delivery_archive', 'side_effect', 'reply'] loop
            child := parent || '_' || to_char(monday at time zone 'UTC', 'YYYYMMDD');
            if to_regclass('boathook.' || child) is null then
                execute format(
                    'create table boathook.%I partition of boathook.%I for values from (%L) to (%L)',
                    child, parent, boathook.min_id(monday), boathook.min_id(monday + interval '7 days'));
                made := made + 1;
            end if;
        end loop;
    end loop;
    return made;
end $$;
