-- The names under which events of an application are stored, given its id, uid or imported id, or another name.
create function boathook.application_names(p_application text) returns text[] language sql stable as $$
    select array[p_application] || array(
        select boathook.show_id('app', id) from boathook.application
        where (uid = p_application or imported_id = p_application) and deleted_at is null)
$$;
