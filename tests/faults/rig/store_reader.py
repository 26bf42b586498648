"""Reads the tables with SQL, and records with a trigger every state change of every delivery.

`TRIGGERS` writes each change of a delivery's row to `fault_rig.edge`, in the transaction that makes it. A change that is rolled
back leaves no edge, so the edges are what was committed, in the order in which the row went through it.
"""

from typing import Any

import psycopg

from tests.faults.rig.bank import OPENING
from tests.faults.rig.store_state import Attempt, Conflict, Delivery, Edge, Effect, Store, StoredEvent

TRIGGERS = """
create schema fault_rig;
create table fault_rig.edge (
    number bigserial primary key, event_id uuid not null, ordinal smallint not null, recipient text not null,
    before text not null, after text not null, fence bigint not null, attempts integer not null,
    attempts_before integer not null, order_key text, seq bigint not null, at timestamptz not null default clock_timestamp()
);
create function fault_rig.write_edge() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into fault_rig.edge (event_id, ordinal, recipient, before, after, fence, attempts, attempts_before, order_key, seq)
        values (new.event_id, new.ordinal, new.recipient, '', new.state, new.fence, new.attempts, 0, new.order_key, new.seq);
    elsif tg_op = 'DELETE' then
        insert into fault_rig.edge (event_id, ordinal, recipient, before, after, fence, attempts, attempts_before, order_key, seq)
        values (old.event_id, old.ordinal, old.recipient, old.state, '', old.fence, old.attempts, old.attempts, old.order_key,
            old.seq);
    elsif (old.state, old.fence, old.attempts) is distinct from (new.state, new.fence, new.attempts) then
        insert into fault_rig.edge (event_id, ordinal, recipient, before, after, fence, attempts, attempts_before, order_key, seq)
        values (new.event_id, new.ordinal, new.recipient, old.state, new.state, new.fence, new.attempts, old.attempts,
            new.order_key, new.seq);
    end if;
    return null;
end $$;
create trigger lab_edges after insert or update or delete on boathook.delivery
    for each row execute function fault_rig.write_edge();
"""

_EVENTS = """
select id::text, dedup_key as key, encode(sha256(body), 'hex') as sha, encode(body_sha256, 'hex') as claimed, fanout,
    case when origin = 'published' then boathook.show_id('msg', id) else '' end as message
from boathook.event
"""
_OWED = """
select d.event_id::text as event, d.ordinal, d.recipient, d.state, d.attempts, d.replays, d.is_replay,
    coalesce(regexp_replace(p.url, '^[a-z]+://[^/]*', ''), '') as place
from (
    select event_id, ordinal, recipient, state, attempts, replays, is_replay from boathook.delivery
    union all
    select event_id, ordinal, recipient, state, attempts, replays, is_replay from boathook.delivery_archive
) as d
left join boathook.endpoint p on p.id = boathook.endpoint_of(d.recipient)
"""
_TRIED = "select event_id::text as event, ordinal, number, outcome, coalesce(code, '') as code from boathook.attempt"
_EDGES = """
select number, event_id::text as event, ordinal, recipient, before, after, fence, attempts, attempts_before,
    coalesce(order_key, '') as order_key, seq
from fault_rig.edge order by number
"""
_EFFECTS = """
select number, event_key as key, event_id::text as event, handler, attempt, account, other, sha
from bank.effect order by number
"""
_REPORTED = """
select d.data ->> 'msgId' as message, d.data ->> 'originalMsgId' as original
from boathook.event, lateral (select convert_from(body, 'UTF8')::json -> 'data' as data) as d
where type = 'message.duplicate'
"""
_OPEN = """
select count(*) from boathook.delivery where state <> 'dead' and (is_blocked or due_at < now() + interval '1 minute')
"""


def read(url: str) -> Store:
    """Return all data needed for the verdict, in one snapshot."""
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as db:
        db.execute("set transaction isolation level repeatable read, read only")

        def rows(sql: str) -> list[dict[str, Any]]:
            return db.execute(sql).fetchall()

        return Store(
            events=tuple(StoredEvent(**row) for row in rows(_EVENTS)),
            conflicts=tuple(
                Conflict(**row)
                for row in rows("select dedup_key as key, encode(sha256(body), 'hex') as sha from boathook.conflict")
            ),
            remembered=frozenset(
                row["event"] for row in rows("select distinct event_id::text as event from boathook.dedup")
            ),
            deliveries=tuple(Delivery(**row) for row in rows(_OWED)),
            attempts_made=tuple(Attempt(**row) for row in rows(_TRIED)),
            edges=tuple(Edge(**row) for row in rows(_EDGES)),
            effects=tuple(Effect(**row) for row in rows(_EFFECTS)),
            balances={row["name"]: row["balance"] for row in rows("select name, balance from bank.account")},
            opening=OPENING,
            reported={row["message"]: row["original"] for row in rows(_REPORTED)},
        )


def count_open(url: str) -> int:
    """Return how many deliveries are to be tried within a minute, or are being tried."""
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute(_OPEN).fetchone()
        assert row is not None
        return int(row[0])


def ask(url: str, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a scenario's own question."""
    with psycopg.connect(url, autocommit=True) as db:
        return db.execute(sql, arguments).fetchall()
