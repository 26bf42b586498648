"""Writes Grafana's dashboards from the tables below; `make docs` runs it, and a test compares the files.

Each file stands in the package, for `boathook dashboards`, and in `deploy/grafana/`, for Grafana's provisioning.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "src/boathook/observability/grafana", ROOT / "deploy/grafana/dashboards")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'instance=~"$instance"'
WIDTH, HEIGHT = 8, 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart or figure."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """PromQL, in which ``@`` stands for the chosen instances, and the legend."""
    about: str
    kind: str = "timeseries"
    stacked: bool = False


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Return the rate a second of a counter."""
    chosen = f"{where},@" if where else "@"
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{chosen}}}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Return a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{@}}[$__rate_interval])))"


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    """Return the three quantiles that are looked at."""
    return tuple((quantile(share, metric), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))


BOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "overview": (
        "Overview",
        (
            Panel(
                "Alerts",
                "short",
                (("sum by (severity) (max by (severity) (boathook_alerts_firing{@}))", "{{severity}}"),),
                "Alerts that boathook itself sees firing; the console has them one by one.",
                "stat",
            ),
            Panel(
                "Dead letters",
                "short",
                (('sum(max by (recipient) (boathook_backlog{state="dead",@}))', "dead"),),
                "Deliveries that were given up and are not decided.",
                "stat",
            ),
            Panel(
                "Oldest due delivery",
                "s",
                (("max(boathook_oldest_due_seconds{@})", "oldest"),),
                "How long the oldest due delivery has been waiting.",
                "stat",
            ),
            Panel(
                "Events accepted",
                "ops",
                ((rate("boathook_events_accepted_total", "source"), "{{source}}"),),
                "Events committed, by source.",
                stacked=True,
            ),
            Panel(
                "Attempts",
                "ops",
                (
                    (rate("boathook_attempts_total", "outcome"), "handlers: {{outcome}}"),
                    (rate("boathook_endpoint_requests_total", "outcome"), "endpoints: {{outcome}}"),
                ),
                "Attempts that ended, by what became of the delivery.",
                stacked=True,
            ),
            Panel(
                "Reply to senders",
                "s",
                quantiles("boathook_ack_seconds"),
                "From a request's head to its reply, for accepted events.",
            ),
            Panel(
                "Backlog",
                "short",
                (("sum by (state) (max by (recipient, state) (boathook_backlog{@}))", "{{state}}"),),
                "Deliveries that have not ended, by state.",
                stacked=True,
            ),
            Panel(
                "From accepting to the first attempt",
                "s",
                quantiles("boathook_first_attempt_delay_seconds"),
                "How long events wait before anything is tried.",
            ),
            Panel(
                "Refused",
                "ops",
                ((rate("boathook_rejections_total", "reason"), "{{reason}}"),),
                "Requests refused at the gate, by reason.",
                stacked=True,
            ),
            Panel(
                "Restarts and dropped log lines",
                "ops",
                (
                    (rate("boathook_process_restarts_total", "role"), "restart: {{role}}"),
                    (rate("boathook_log_lines_dropped_total"), "lines dropped"),
                ),
                "Child processes that died and were started again; lines that nobody read fast enough.",
            ),
            Panel(
                "Messages about alerts",
                "ops",
                ((rate("boathook_alert_messages_total", "channel, outcome"), "{{channel}}: {{outcome}}"),),
                "What channels took, and what they did not.",
            ),
        ),
    ),
    "inbound": (
        "Inbound",
        (
            Panel(
                "Requests",
                "ops",
                ((rate("boathook_requests_total", "status"), "{{status}}"),),
                "Requests at sources, by the status answered.",
                stacked=True,
            ),
            Panel(
                "Requests by source",
                "ops",
                ((rate("boathook_requests_total", "source"), "{{source}}"),),
                "The same, by source.",
                stacked=True,
            ),
            Panel(
                "Duplicates",
                "ops",
                ((rate("boathook_duplicates_total", "source"), "{{source}}"),),
                "Requests whose event was there already.",
            ),
            Panel(
                "Conflicts",
                "ops",
                ((rate("boathook_conflicts_total", "source"), "{{source}}"),),
                "Requests with the id of another event. Each is worth a look.",
            ),
            Panel(
                "Failed proofs",
                "ops",
                (
                    (
                        rate("boathook_rejections_total", "source", 'reason=~"signature_.*|token_.*|unknown_scheme"'),
                        "{{source}}",
                    ),
                ),
                "Requests without a valid signature or token, by source.",
            ),
            Panel(
                "Refused, by reason",
                "ops",
                ((rate("boathook_rejections_total", "source, reason"), "{{source}}: {{reason}}"),),
                "All refusals at the gate.",
            ),
            Panel(
                "Clock skew of senders",
                "s",
                (("max by (source) (boathook_sender_clock_skew_seconds{@})", "{{source}}"),),
                "The sender's clock minus ours, at the latest verified request.",
            ),
            Panel(
                "Reply to senders",
                "s",
                quantiles("boathook_ack_seconds"),
                "From a request's head to its reply, for accepted events.",
            ),
            Panel(
                "Waiting for a handler's reply",
                "s",
                quantiles("boathook_inline_wait_seconds"),
                "Senders of sources with mode = inline, once their event was stored.",
            ),
            Panel(
                "Inline replies",
                "ops",
                ((rate("boathook_inline_replies_total", "outcome"), "{{outcome}}"),),
                "Answered by the handler, told the fallback, or gone.",
                stacked=True,
            ),
            Panel(
                "Connections", "short", (("sum(boathook_connections{@})", "open"),), "Open connections of the gateways."
            ),
            Panel(
                "Connections refused",
                "ops",
                ((rate("boathook_connections_refused_total", "reason"), "{{reason}}"),),
                "Closed by the protocol's limits, by reason.",
            ),
        ),
    ),
    "handlers": (
        "Handlers",
        (
            Panel(
                "Attempts by handler",
                "ops",
                ((rate("boathook_attempts_total", "recipient"), "{{recipient}}"),),
                "Attempts that ended.",
                stacked=True,
            ),
            Panel(
                "Share of failed attempts",
                "percentunit",
                (
                    (
                        rate("boathook_attempts_total", "recipient", 'outcome=~"retry|dead"')
                        + " / "
                        + rate("boathook_attempts_total", "recipient"),
                        "{{recipient}}",
                    ),
                ),
                "Attempts after which the delivery is pending again or failed permanently.",
            ),
            Panel(
                "Given up",
                "ops",
                ((rate("boathook_attempts_total", "recipient", 'outcome="dead"'), "{{recipient}}"),),
                "Deliveries that became dead letters.",
            ),
            Panel(
                "Duration, 95th percentile",
                "s",
                ((quantile(0.95, "boathook_handler_seconds", "recipient"), "{{recipient}}"),),
                "One attempt, settling included.",
            ),
            Panel(
                "Running",
                "short",
                (("sum by (recipient) (boathook_handlers_running{@})", "{{recipient}}"),),
                "Handlers that are running.",
                stacked=True,
            ),
            Panel(
                "Due",
                "short",
                (('max by (recipient) (boathook_backlog{state="due",@})', "{{recipient}}"),),
                "Deliveries that wait for a worker.",
                stacked=True,
            ),
            Panel(
                "Waiting for a later attempt",
                "short",
                (('max by (recipient) (boathook_backlog{state="later",@})', "{{recipient}}"),),
                "Deliveries that are tried again later.",
                stacked=True,
            ),
            Panel(
                "Blocked by their order",
                "short",
                (('max by (recipient) (boathook_backlog{state="blocked",@})', "{{recipient}}"),),
                "Deliveries that wait for another one with their order key.",
            ),
            Panel(
                "Breakers open",
                "short",
                (("max by (dependency) (boathook_circuit_breaker_open{@})", "{{dependency}}"),),
                "Dependencies that keep failing, whose handlers pause.",
            ),
            Panel(
                "Leases lost and reaped",
                "ops",
                (
                    (rate("boathook_leases_lost_total", "recipient"), "lost: {{recipient}}"),
                    (rate("boathook_leases_expired_total"), "reaped"),
                ),
                "Attempts whose worker was gone or too late.",
            ),
            Panel(
                "Chores of apps",
                "ops",
                ((rate("boathook_chores_total", "app, chore, outcome"), "{{app}}.{{chore}}: {{outcome}}"),),
                "Runs, by how they ended.",
            ),
            Panel(
                "Duration of chores, 95th percentile",
                "s",
                ((quantile(0.95, "boathook_chore_seconds", "app, chore"), "{{app}}.{{chore}}"),),
                "One run of an app's chore.",
            ),
        ),
    ),
    "sending": (
        "Sending",
        (
            Panel(
                "Requests to endpoints",
                "ops",
                ((rate("boathook_endpoint_requests_total", "outcome"), "{{outcome}}"),),
                "By what became of the delivery.",
                stacked=True,
            ),
            Panel(
                "Share that failed",
                "percentunit",
                (
                    (
                        rate("boathook_endpoint_requests_total", "", 'outcome=~"retry|dead"')
                        + " / "
                        + rate("boathook_endpoint_requests_total"),
                        "failed",
                    ),
                ),
                "Requests after which the delivery is pending again or failed permanently.",
            ),
            Panel(
                "Duration",
                "s",
                quantiles("boathook_endpoint_request_seconds"),
                "One request, to its response's headers.",
            ),
            Panel(
                "In progress",
                "short",
                (("sum(boathook_endpoint_requests_in_flight{@})", "requests"),),
                "Requests in progress.",
            ),
            Panel(
                "Messages published",
                "ops",
                ((rate("boathook_messages_published_total"), "published"),),
                "Also where their transactions rolled back later.",
            ),
            Panel(
                "Owed to endpoints",
                "short",
                (('max by (state) (boathook_backlog{recipient="endpoint",@})', "{{state}}"),),
                "Deliveries to all endpoints together, by state.",
                stacked=True,
            ),
            Panel(
                "Endpoints disabled",
                "ops",
                ((rate("boathook_endpoints_disabled_total", "reason"), "{{reason}}"),),
                "Endpoints that boathook has disabled, as they failed or were gone.",
            ),
        ),
    ),
    "storage": (
        "Spool and PostgreSQL",
        (
            Panel(
                "PostgreSQL away",
                "bool_yes_no",
                (("max by (instance) (boathook_database_unavailable{@})", "{{instance}}"),),
                "Whether a gateway takes events into its spool.",
                "stat",
            ),
            Panel(
                "Events in the spool",
                "short",
                (("sum by (instance) (boathook_spool_events{@})", "{{instance}}"),),
                "Events that wait on disk for PostgreSQL.",
            ),
            Panel(
                "Spool used",
                "percentunit",
                (("max by (instance) (boathook_spool_used_ratio{@})", "{{instance}}"),),
                "Share of spool.max_bytes, of the fullest gateway.",
            ),
            Panel(
                "Oldest event in the spool",
                "s",
                (("max by (instance) (boathook_spool_oldest_seconds{@})", "{{instance}}"),),
                "How long it has been waiting.",
            ),
            Panel(
                "Into and out of the spool",
                "ops",
                (
                    (rate("boathook_spool_appended_total"), "appended"),
                    (rate("boathook_spool_drained_total", "outcome"), "drained: {{outcome}}"),
                ),
                "Events made durable on disk, and events brought to PostgreSQL.",
            ),
            Panel(
                "Trouble of the spool",
                "short",
                (
                    ("max by (kind) (boathook_spool_set_aside{@})", "aside: {{kind}}"),
                    ("max(boathook_spool_failing{@})", "disk fails"),
                ),
                "What a person has to look at.",
            ),
            Panel(
                "Making events durable in the spool",
                "s",
                quantiles("boathook_spool_sync_seconds"),
                "One group of events.",
            ),
            Panel("Group commits", "s", quantiles("boathook_commit_seconds"), "Duration of one commit."),
            Panel(
                "Events in a group commit",
                "short",
                (
                    (quantile(0.5, "boathook_commit_batch_events"), "p50"),
                    (quantile(0.99, "boathook_commit_batch_events"), "p99"),
                ),
                "The busier, the more.",
            ),
            Panel(
                "Waiting in memory for PostgreSQL",
                "short",
                (("sum by (instance) (boathook_ingest_queue_events{@})", "{{instance}}"),),
                "Events in the queues of gateways.",
            ),
            Panel(
                "Oldest snapshot",
                "s",
                (("max(boathook_oldest_snapshot_age_seconds{@})", "age"),),
                "A transaction that stays open keeps PostgreSQL from cleaning up.",
            ),
            Panel(
                "Dropped by retention",
                "ops",
                ((rate("boathook_retention_dropped_total", "kind"), "{{kind}}"),),
                "Rows that were older than the settings keep them.",
            ),
        ),
    ),
}


def pages() -> dict[Path, str]:
    """Return the text of every dashboard by its path."""
    texts = {name: json.dumps(_board(name, *board), indent=1) + "\n" for name, board in BOARDS.items()}
    return {folder / f"{name}.json": text for folder in FOLDERS for name, text in texts.items()}


def _board(name: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    return {
        "uid": f"boathook-{name}",
        "title": f"boathook: {title}",
        "tags": ["boathook"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [
            {"type": "dashboards", "tags": ["boathook"], "title": "boathook", "asDropdown": True, "keepTime": True}
        ],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Host",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(boathook_connections, instance)", "refId": "instance"},
                    "definition": "label_values(boathook_connections, instance)",
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.unit != "short" or panel.kind == "timeseries":
        defaults["min"] = 0
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 20 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "showPoints": "never",
        }
    if panel.title.startswith("Clock skew"):
        del defaults["min"]
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": number % 3 * WIDTH, "y": number // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": query.replace("@", HERE),
                "legendFormat": legend,
            }
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
