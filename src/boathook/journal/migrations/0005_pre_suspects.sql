-- Suspects are few, and looked for at every announcement: in the index of all that is due, each look would wade through the
-- whole backlog, and through the dead entries of what is finished while some long snapshot keeps them.
create index delivery_suspect on boathook.delivery (recipient, due_at) where state = 'pending' and not is_blocked and lost >= 2;
