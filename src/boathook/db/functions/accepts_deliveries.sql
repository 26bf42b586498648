-- Returns whether a recipient accepts deliveries: any handler does, and any endpoint that is neither deleted nor
-- disabled.
create function boathook.accepts_deliveries(p_recipient text) returns boolean language sql stable as $$
    select not starts_with(p_recipient, 'endpoint:') or exists (
        select from boathook.endpoint e join boathook.application a on a.id = e.application_id
        where e.id = boathook.endpoint_of(p_recipient) and e.deleted_at is null and not e.is_disabled and a.deleted_at is null)
$$;
