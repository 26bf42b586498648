"""The app's alerts; operators configure channels, texts and repetitions under ``[notifications]``.

Each has its sentence as the detail ``text``, in the language of the settings.
"""

from typing import Final

from boathook import AlertReading, Transaction
from boathook_fleet import branches, status
from boathook_fleet.app import gettext, hook

unparsed: Final = hook.alert(
    "unparsed_field", "{text} ({value})", advice="See `boathook fleet unparsed list`.", repeat_interval_s=3_600.0
)
given_up: Final = hook.alert(
    "dead_letter_given_up", "{text} ({value})", severity="critical", advice="See `boathook dead list`."
)
_silent: Final = hook.alert(
    "branch_silent", "{text}", severity="critical",
    advice="See whether RentProg's webhook of this company is enabled: settings, integrations, webhooks.",
)  # fmt: skip
_slow: Final = hook.alert(
    "slow_acknowledgements", "{text}",
    advice="`boathook doctor` shows whether PostgreSQL is slow; fleet.ack_sla_ms is the threshold.",
)  # fmt: skip
_not_ready: Final = hook.alert("not_ready", "{text}", severity="critical", advice="Run `boathook doctor`.")


@_silent.check
async def find_silent(tx: Transaction) -> list[AlertReading]:
    """Return the branches that have sent no webhook for too long."""
    await branches.watch_branches(tx, hook.settings)
    readings = []
    for id, state in (await branches.read_branches(tx, hook.settings)).items():
        if state["is_silent"]:
            name, hours = state["name"] or id, f"{state['silent_h']:g}"
            text = gettext("No webhook of branch %(name)s for %(hours)s hours of operation", name=name, hours=hours)
            readings.append(AlertReading(id, state["silent_h"], {"name": name, "text": text}))
    return readings


@_slow.check
async def find_slow(_tx: Transaction) -> list[AlertReading]:
    """Return the time of acknowledgements, if it is too long."""
    p95 = (await status.read_figures(hook)).ack_ms("p95")
    if p95 is None or p95 <= hook.settings.ack_sla_ms:
        return []
    return [AlertReading("", p95, {"text": gettext("Acknowledging webhooks takes %(ms)s ms (p95)", ms=f"{p95:g}")})]


@_not_ready.check
async def find_problems(_tx: Transaction) -> list[AlertReading]:
    """Return why boathook is not ready."""
    problems = (await status.read_figures(hook)).status.get("problems", ())
    return [
        AlertReading(str(problem), 1.0, {"text": gettext("Not ready: %(problem)s", problem=problem)})
        for problem in problems
    ]
