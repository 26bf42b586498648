-- Which operations have no end yet is asked every minute.

create index on cashdesk.operations (created_at) where state = 'PENDING';
