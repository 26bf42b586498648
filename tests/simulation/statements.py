"""Maps the SQL text of every statement to its implementation in Python on the fake database.

A statement is found by its text, so production code sends the real one. The differential test holds each function
against the statement itself on PostgreSQL.
"""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from boathook.db import (
    alerts,
    audit,
    dedup,
    deliveries,
    delivery_commands,
    due_notifier,
    endpoint_deliveries,
    endpoints,
    events,
    integrity_runs,
    maintenance,
    metric_samples,
    ordering,
    rerouting,
    route_registry,
    stored_sources,
    tasks,
)
from tests.simulation import ingest_statements, lease_statements, operator_statements, sending_statements
from tests.simulation.lease_statements import single
from tests.simulation.tables import Blocked, Effect, Record, Transaction

Statement = Callable[..., list[Record]]


# What simulated handlers and deployments send


def _do_effect(t: Transaction, event_id: UUID, ordinal: int, fence: int, value: object) -> list[Record]:
    assert t.mark is not None, "an effect outside the transaction of an attempt"
    t.effects.append(Effect(event_id, ordinal, fence, value))
    return []


def _deploy(t: Transaction) -> list[Record]:
    t.tables.routes_version += 1
    return []


EFFECT = "insert into deed values ($1, $2, $3, $4)"
DEPLOY = "update boathook.route set changed_at = now()"

BY_TEXT: dict[str, tuple[str, Statement]] = {EFFECT: ("effect", _do_effect), DEPLOY: ("deploy", _deploy)}
_OURS: Mapping[Any, Mapping[str, Statement]] = {
    deliveries: {
        "claim_due": lease_statements.claim_due, "lock_recipients": lease_statements.lock_recipients,
        "renew_leases": lease_statements.renew_leases, "record_failure": lease_statements.record_failure, "record_wait": lease_statements.record_wait,
        "match_signals": lambda _t, _most: single(woken=0), "drop_signals": lambda _t, _kept_s: [], "drop_waits": lambda _t: [],
        "release_claims": lease_statements.release_claims, "find_lost": lease_statements.find_lost,
        "unblock_heads": lease_statements.unblock_heads, "find_held": lease_statements.find_held, "find_settled": lease_statements.find_settled,
        "recall_effect": lease_statements.recall_effect, "save_side_effect": lease_statements.save_side_effect, "count_backlog": operator_statements.count_backlog,
        "find_troubled_endpoints": operator_statements.find_troubled_endpoints,
        "age_of_oldest_snapshot": lambda _t: single(age=0.0),
    },
    ordering: {"unblock_lines": lease_statements.unblock_lines},
    dedup: {"forget_expired": ingest_statements.forget_expired},
    events: {
        "append_events": ingest_statements.append_events, "find_seen": ingest_statements.find_seen, "record_conflict": ingest_statements.record_conflict, "get_body": ingest_statements.get_body,
    },
    delivery_commands: {
        "lock_dead": operator_statements.lock_dead, "lock_dead_of_events": operator_statements.lock_dead_of_events, "revive_dead": operator_statements.revive_dead,
        "settle_dead": operator_statements.settle_dead, "record_actions": operator_statements.record_actions, "lock_pending": operator_statements.lock_pending, "wake_pending": operator_statements.wake_pending,
        "lock_replays": operator_statements.lock_replays, "add_replays": operator_statements.add_replays, "list_done": operator_statements.list_done,
        "read_clock": lambda t: single(clock=t.tables.clock()),
    },
    due_notifier: {"announce_due": operator_statements.announce_due},
    endpoint_deliveries: {
        name: getattr(sending_statements, name)
        for name in (
            "list_due", "find_due_of", "claim_endpoint_deliveries", "load_endpoints", "settle_endpoint_deliveries", "ensure_health", "take_tokens", "return_tokens",
            "take_probes", "release_probes", "mark_healthy", "update_health", "lock_failing", "list_paused", "dead_letter_pending",
        )
    },
    endpoints: {"disable_endpoint": sending_statements.disable_endpoint, "forget_failures": sending_statements.forget_failures, "allow_probes": sending_statements.allow_probes, "put_first": sending_statements.put_first},
    route_registry: {
        "read_routes": lambda t: single(routes=f'{{"version": {t.tables.routes_version}, "routes": {t.tables.routes}}}'),
    },
    alerts: {"count_repeated": lambda _t, *_: [], "count_causes": lambda _t, *_: []},
    rerouting: {"count_unhandled": ingest_statements.count_unhandled},
    tasks: {"take_task": lambda _t: []},
    audit: {"seal_rows": lambda _t, _most: single(encrypted=0)},
    metric_samples: {"lock_roll_up": lambda _t: [], "take_rows": lambda _t, _most: [], "drop_old": lambda _t, *_: []},
    integrity_runs: {"claim_run": lambda _t, *_: []},
    stored_sources: {"read_version": lambda _t: single(version=""), "list_sources": lambda _t: []},
    maintenance: {"try_lock": lambda _t: single(turn=False)},
}  # fmt: skip
# There are no operational webhooks, and no tasks, secrets or weeks that are past are simulated: these find nothing.
for _sql in (endpoint_deliveries.SQL[name] for name in (
    "describe_endpoints", "delete_expired_secrets", "delete_expired_answers", "delete_ended_portal_keys",
)):  # fmt: skip
    BY_TEXT[_sql] = ("nothing", lambda _t, *_: [])
for _module, _named in _OURS.items():
    for _name, _statement in _named.items():
        BY_TEXT[_module.SQL[_name]] = (_name, _statement)

__all__ = ["BY_TEXT", "DEPLOY", "EFFECT", "Blocked", "Record"]
