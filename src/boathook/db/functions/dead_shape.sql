-- An error without the parts that vary: quoted values, numbers, ids, dates and runs of hexadecimal.
create function boathook.dead_shape(error text) returns text language sql immutable parallel safe as $$
    select left(
        regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
            coalesce(error, ''),
            '(^|[^0-9A-Za-z])(''[^'']*''|"[^"]*"|`[^`]*`)', '\1''*''', 'g'),
            '[0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]*', '#', 'g'),
            '\m[A-Fa-f]{8,}\M', '#', 'g'),
            '#([^0-9A-Za-z]{1,3}#)+', '#', 'g'),
            '\s+', ' ', 'g'),
        200)
$$;
