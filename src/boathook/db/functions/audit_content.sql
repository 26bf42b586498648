-- The sealed content of an audit row, as bytes that are the same on every server.
create function boathook.audit_content(entry boathook.audit) returns bytea language sql stable as $$
    select convert_to(
        json_build_array(
            entry.id, (extract(epoch from entry.at) * 1000000)::bigint, entry.actor, entry.action, entry.subject, entry.note)::text,
        'UTF8')
$$;
