"""Metrics of payments; MONITORING.md lists them, alerts.yml has alert rules.

Requests, duplicates, rejections and pending events are counted by boathook, and shown here under the app's own names.
"""

from typing import Final

from boathook_billing.app import SOURCE, YOOKASSA_SOURCE, hook, settings
from boathook_billing.rules import Problem
from boathook_billing.settings import YOOKASSA

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LAG_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)

processed = hook.counter(
    "billing_webhooks_processed_total",
    "Events that ended well, by what became of them: applied, reversed or ignored.",
    "provider",
    "result",
)
failed_retryable = hook.counter(
    "billing_webhooks_failed_retryable_total",
    "Attempts after which an event is tried again, by why.",
    "provider",
    "code",
)
unlinked = hook.counter(
    "billing_payments_unlinked_total", "Successful payments that named no known user, by why.", "provider", "problem"
)
mismatched = hook.counter(
    "billing_payments_amount_mismatch_total", "Successful payments of another amount than their plan's.", "provider"
)
late = hook.counter("billing_payments_late_total", "Payments whose success was reported late.", "provider")
recovered = hook.counter(
    "billing_payments_recovered_total", "Payments applied after they had waited or failed before.", "provider"
)
duration = hook.histogram(
    "billing_webhook_processing_seconds", "Duration of one attempt to apply an event.", "provider", bounds=SECONDS
)
lag = hook.histogram(
    "billing_webhook_lag_seconds", "From accepting an event to its end.", "provider", bounds=LAG_SECONDS
)
payments = hook.gauge("billing_payments", "Payments by status.", "status")
waiting = hook.gauge("billing_payments_waiting", "Successful payments that are not applied, by why.", "problem")
oldest_waiting = hook.gauge(
    "billing_oldest_waiting_seconds", "How long the oldest of them has been waiting for its user.", "problem"
)

receipts = hook.gauge("billing_receipts", "Receipts by state.", "state")
oldest_receipt = hook.gauge("billing_oldest_receipt_seconds", "How long the oldest receipt has been waiting.")


hook.alert_rule(
    "unlinked_payments",
    "a payment waits for its user: {subject}",
    metric="billing_oldest_waiting_seconds",
    labels={"problem": [Problem.UNLINKED_PAYMENT]},
    by=["problem"],
    above=3600.0,
    advice="A customer has paid and received nothing: see `boathook billing payments --waiting`.",
)
hook.alert_rule(
    "missing_users",
    "a payment has waited for its user for a day: {subject}",
    metric="billing_oldest_waiting_seconds",
    labels={"problem": [Problem.USER_MISSING]},
    by=["problem"],
    above=86_400.0,
    advice="A customer has paid and received nothing: see `boathook billing payments --waiting`.",
)


hook.alert_rule(
    "amount_mismatch",
    "payments of {subject} do not cost what their plan does ({value} within {period})",
    metric="billing_payments_amount_mismatch_total",
    measure="increase",
    by=["provider"],
    above=0.0,
    over_s=3600.0,
    severity="critical",
    advice="They are not applied: see `boathook billing payments --problem AMOUNT_MISMATCH`.",
)
hook.alert_rule(
    "slow_processing",
    "95 % of the payments of {subject} take up to {value} to process",
    metric="billing_webhook_processing_seconds",
    measure="p95",
    by=["provider"],
    above=1.0,
    at_least=20.0,
    over_s=600.0,
    for_s=60.0,
    advice="Compare `boathook_handler_seconds` and the database's load; `duration_ms` in the log tells which payments.",
)


def begin() -> None:
    """Start counters at 0: Prometheus sees no increase in a series that begins with its first count."""
    for provider in settings().providers:
        for result in ("applied", "reversed", "ignored"):
            processed.add(0, provider=provider, result=result)
        for problem in Problem:
            if problem.is_waiting:
                failed_retryable.add(0, provider=provider, code=problem)
                unlinked.add(0, provider=provider, problem=problem)
        for counter in (mismatched, late, recovered):
            counter.add(0, provider=provider)


_UNPROVEN: Final = (
    "signature_missing", "signature_malformed", "signature_mismatch", "token_missing", "token_mismatch",
    "address_not_allowed",
)  # fmt: skip
_SENDERS: Final = (
    (SOURCE, ("handler:billing.record", "handler:billing.apply"), lambda: settings().provider),
    (YOOKASSA_SOURCE, ("handler:billing.confirm",), YOOKASSA),
)
"""The source, its handlers and the provider of each sender; `record` and `apply` handle YooKassa's payments, too."""

for _source, _handlers, _provider in _SENDERS:
    for _name, _help, _of, _labels, _where in (
        ("webhook_requests_total", "Requests, by the status answered.", "boathook_requests_total",
         {"http_code": "status"}, {"source": _source}),
        ("billing_webhooks_duplicate_total", "Requests whose event was there already.", "boathook_duplicates_total",
         {}, {"source": _source}),
        ("billing_webhooks_conflict_total", "Requests with the id of another event, but another body.",
         "boathook_conflicts_total", {}, {"source": _source}),
        ("billing_webhooks_invalid_signature_total", "Requests without a valid signature, secret or address.",
         "boathook_rejections_total", {}, {"source": _source, "reason": _UNPROVEN}),
        ("billing_webhooks_failed_final_total", "Events given up: by the rules, or after the last attempt.",
         "boathook_attempts_total", {}, {"recipient": _handlers, "outcome": "dead"}),
        ("billing_webhook_backlog", "Events not ended: due, later, leased, blocked or dead.", "boathook_backlog",
         {"status": "state"}, {"recipient": _handlers}),
    ):  # fmt: skip
        hook.mirror(_name, _help, of=_of, where=_where, labels=_labels, constants={"provider": _provider})
