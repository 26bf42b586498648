-- concurrently

-- Both hold dead letters alone, so that a delivery costs nothing more until it dies.
create index concurrently if not exists delivery_dead_group on boathook.delivery
    (boathook.dead_group(recipient, code, error), died_at) where state = 'dead';
create index concurrently if not exists delivery_died on boathook.delivery (died_at, event_id, ordinal) where state = 'dead';
