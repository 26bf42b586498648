-- Events of sources that are owed to nobody, as no handler matched. A row leaves when its event is routed again, or as old
-- as events may become.
create table boathook.unhandled (
    event_id uuid primary key,
    source text not null
);

-- The default stands for what was stored before this revision, and for what an older boathook still stores beside it.
alter table boathook.event add column items json default '[]';
