"""The app's alerts; operators configure channels, texts and repetitions under ``[notifications]``."""

from boathook import AlertReading, Boathook, Transaction
from boathook_fleet import branches, status


def declare_alerts(hook: Boathook) -> None:
    """Register the alerts that checks decide on *hook*."""
    silent = hook.alert(
        "branch_silent", "no webhook of branch {name} for {value} hours of operation", severity="critical",
        advice="See whether RentProg's webhook of this company is enabled: settings, integrations, webhooks.",
    )  # fmt: skip
    slow = hook.alert(
        "slow_acknowledgements", "acknowledging webhooks takes {value} ms (p95 of the last minute)",
        advice="`boathook doctor` shows whether PostgreSQL is slow; fleet.ack_sla_ms is the threshold.",
    )  # fmt: skip
    not_ready = hook.alert("not_ready", "not ready: {subject}", severity="critical", advice="Run `boathook doctor`.")

    @silent.check
    async def find_silent(tx: Transaction) -> list[AlertReading]:
        await branches.watch_branches(tx, hook.settings)
        states = await branches.read_branches(tx, hook.settings)
        return [
            AlertReading(id, state["silent_h"], {"name": state["name"] or id})
            for id, state in states.items()
            if state["is_silent"]
        ]

    @slow.check
    async def find_slow(_tx: Transaction) -> list[AlertReading]:
        p95 = (await status.read_figures(hook)).ack_ms("p95")
        return [AlertReading("", p95)] if p95 is not None and p95 > hook.settings.ack_sla_ms else []

    @not_ready.check
    async def find_problems(_tx: Transaction) -> list[AlertReading]:
        problems = (await status.read_figures(hook)).status.get("problems", ())
        return [AlertReading(str(problem), 1.0) for problem in problems]
