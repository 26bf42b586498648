-- Fires an alert of an app for a subject, or resolves it, when the transaction commits.
create function boathook.fire_alert(p_rule text, p_subject text, p_is_resolved boolean, p_details json) returns void
language sql as $$
    insert into boathook.alert_signal (rule, subject, is_resolved, details)
    values (p_rule, p_subject, p_is_resolved, p_details)
$$;
