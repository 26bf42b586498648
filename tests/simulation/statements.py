"""Each of the journal's statements by its SQL text, with what it does on the fake journal: the same in Python.

A statement is found by its text, so production code sends the real one. The differential test holds each function
against the statement itself on PostgreSQL.
"""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from boathook.journal import (
    audit,
    deliveries,
    endpoints,
    events,
    lines,
    memory,
    moves,
    registry,
    samples,
    sending,
    tasks,
    upkeep,
    verify_runs,
)
from tests.simulation import arrivals, leases, operators, sendings
from tests.simulation.leases import single
from tests.simulation.tables import Blocked, Effect, Record, Transaction

Statement = Callable[..., list[Record]]


# What simulated handlers and deployments send


def _do_effect(t: Transaction, value: object) -> list[Record]:
    assert t.mark is not None, "an effect outside the transaction of an attempt"
    event_id, ordinal, fence = t.mark.split("/")
    t.effects.append(Effect(UUID(event_id), int(ordinal), int(fence), value))
    return []


def _deploy(t: Transaction) -> list[Record]:
    t.tables.routes_version += 1
    return []


EFFECT = "insert into deed values ($1)"
DEPLOY = "update boathook.route set changed_at = now()"

BY_TEXT: dict[str, tuple[str, Statement]] = {EFFECT: ("effect", _do_effect), DEPLOY: ("deploy", _deploy)}
_OURS: Mapping[Any, Mapping[str, Statement]] = {
    deliveries: {
        "claim_due": leases.claim_due, "claim_suspect": leases.claim_suspect, "lock_recipients": leases.lock_recipients,
        "renew_leases": leases.renew_leases, "set_back": leases.set_back, "give_back": leases.give_back, "find_lost": leases.find_lost,
        "unblock_heads": leases.unblock_heads, "find_held": leases.find_held, "find_settled": leases.find_settled,
        "recall_effect": leases.recall_effect, "remember_effect": leases.remember_effect, "count_backlog": operators.count_backlog,
        "count_troubled_endpoints": operators.count_troubled_endpoints,
        "age_of_oldest_snapshot": lambda _t: single(age=0.0),
    },
    lines: {"unblock_lines": leases.unblock_lines},
    memory: {"forget_expired": arrivals.forget_expired},
    events: {
        "append_events": arrivals.append_events, "find_seen": arrivals.find_seen, "record_conflict": arrivals.record_conflict, "get_body": arrivals.get_body,
    },
    moves: {
        "lock_dead": operators.lock_dead, "lock_dead_of_events": operators.lock_dead_of_events, "revive_dead": operators.revive_dead,
        "settle_dead": operators.settle_dead, "record_actions": operators.record_actions, "lock_owed": operators.lock_owed, "wake_owed": operators.wake_owed,
        "lock_replays": operators.lock_replays, "add_replays": operators.add_replays, "list_done": operators.list_done, "announce_due": operators.announce_due,
        "read_clock": lambda t: single(clock=t.tables.clock()),
    },
    sending: {
        name: getattr(sendings, name)
        for name in (
            "list_due", "claim_sends", "read_addresses", "settle_sends", "ensure_health", "take_tokens", "return_tokens",
            "take_probes", "release_probes", "heal_endpoints", "judge_failures", "lock_failing", "list_barred", "bury_pending",
        )
    },
    endpoints: {"disable_endpoint": sendings.disable_endpoint, "forget_failures": sendings.forget_failures},
    registry: {
        "read_routes": lambda t: single(routes=f'{{"version": {t.tables.routes_version}, "routes": {t.tables.routes}}}'),
    },
    tasks: {"take_task": lambda _t: []},
    audit: {"seal_rows": lambda _t, _most: single(sealed=0)},
    samples: {"take_turn": lambda _t: [], "take_rows": lambda _t, _most: [], "drop_old": lambda _t, *_: []},
    verify_runs: {"claim_run": lambda _t, *_: []},
    upkeep: {"take_turn": lambda _t: single(turn=False)},
}  # fmt: skip
# Nobody listens to how sending goes, and no tasks, secrets or weeks that are past are simulated: these find nothing.
for _sql in (sending.SQL[name] for name in (
    "describe_endpoints", "delete_expired_secrets", "delete_expired_answers", "delete_expired_keys",
)):  # fmt: skip
    BY_TEXT[_sql] = ("nothing", lambda _t, *_: [])
for _module, _named in _OURS.items():
    for _name, _statement in _named.items():
        BY_TEXT[_module.SQL[_name]] = (_name, _statement)

__all__ = ["BY_TEXT", "DEPLOY", "EFFECT", "Blocked", "Record"]
