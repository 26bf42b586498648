"""What is counted about payments; README.md has the table, alerts.yml what to be told of."""

from typing import Final

from boathook.apps.billing.app import hook

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
failed_final = hook.counter(
    "billing_webhooks_failed_final_total", "Events given up by the rules, by why.", "provider", "code"
)
unlinked = hook.counter(
    "billing_payments_unlinked_total", "Successful payments that named no known user, by why.", "provider", "problem"
)
mismatched = hook.counter(
    "billing_payments_amount_mismatch_total", "Successful payments of another amount than their plan's.", "provider"
)
late = hook.counter("billing_payments_late_total", "Payments whose success was told late.", "provider")
recovered = hook.counter(
    "billing_payments_recovered_total", "Payments applied after they had waited or failed before.", "provider"
)
duration = hook.histogram(
    "billing_webhook_processing_seconds", "Duration of one attempt to apply an event.", "provider", bounds=SECONDS
)
lag = hook.histogram(
    "billing_webhook_lag_seconds", "From accepting an event to its end.", "provider", bounds=LAG_SECONDS
)
payments = hook.gauge("billing_payments", "Payments in the books, by status.", "status")
waiting = hook.gauge("billing_payments_waiting", "Successful payments that are not applied, by why.", "problem")
oldest_waiting = hook.gauge(
    "billing_oldest_waiting_seconds", "How long the oldest of them has been waiting for its user.", "problem"
)
