-- Unblocks the first waiting delivery of an order key, if no delivery of that key precedes it. It becomes due now, not
-- in the past, where the watermark of claims would hide it for a while.
create function boathook.unblock(p_recipient text, p_order_key text) returns void language sql
set enable_seqscan = off as $$
    update boathook.delivery d
    set is_blocked = false, due_at = greatest(d.due_at, clock_timestamp())
    where d.recipient = p_recipient and d.order_key = p_order_key and d.state = 'pending' and d.is_blocked
      and d.seq = (
          select min(o.seq) from boathook.delivery o
          where o.recipient = p_recipient and o.order_key = p_order_key and o.state <> 'dead')
$$;
