-- concurrently

-- Rows lie on disk about in the order of their events, and each page that is free again fills with those of one time: so
-- this tells which pages hold the keys of a range of events. Of each range of pages it keeps several spans of ids, as one
-- span from the first to the last would tell nothing once keys have been forgotten and others put in their place.
create index concurrently if not exists dedup_order on boathook.dedup
    using brin (expires_at, event_id uuid_minmax_multi_ops) with (autosummarize = on);
drop index concurrently if exists boathook.dedup_expiry;
