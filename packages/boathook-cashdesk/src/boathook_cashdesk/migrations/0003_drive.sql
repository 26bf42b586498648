-- The number of the fiscal drive that recorded a receipt.

alter table cashdesk.receipts add column drive text;
