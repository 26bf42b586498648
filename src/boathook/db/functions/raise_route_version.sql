create function boathook.raise_route_version() returns trigger language plpgsql as $$
begin
    update boathook.route_version set version = version + 1;
    return null;
end $$;
