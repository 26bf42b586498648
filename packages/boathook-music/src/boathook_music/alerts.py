"""Alerts to operators, in the language of the settings: a stage that is not known, songs and credits that run out."""

from boathook import AlertReading, Transaction
from boathook_music import account, tracks
from boathook_music.app import gettext, hook, settings

unknown_stage = hook.alert("unknown_stage", "{text}: {value}. {hint}")
overdue_tracks = hook.alert("overdue_tracks", "{text}: {value}. {hint}")
low_credits = hook.alert("low_credits", "{text}: {value}. {hint}", below=50)


async def fire_unknown_stage(tx: Transaction) -> None:
    """Say that a callback has a stage that is not known."""
    text = gettext("callbacks with an unknown stage")
    hint = gettext("Their tracks are unchanged: see `boathook music deliveries list --status failed`.")
    await unknown_stage.fire(tx, text=text, hint=hint)


@overdue_tracks.check
async def find_overdue(tx: Transaction) -> list[AlertReading]:
    """Return the number of unfinished songs without news for `overdue_s`."""
    text = gettext("songs without a callback")
    hint = gettext("See `boathook music tracks list --overdue`, and check that the reseller reaches callBackUrl.")
    count = await tracks.count_overdue(tx, settings().overdue_s)
    return [AlertReading("", count, {"text": text, "hint": hint})]


@low_credits.check
async def find_low_credits(tx: Transaction) -> list[AlertReading]:
    """Return the reseller's remaining credits, if they are known."""
    text = gettext("the reseller's credits are running out")
    hint = gettext("Buy credits at the reseller, or orders will fail.")
    credits = (await account.known(tx))["credits"]
    return [] if credits is None else [AlertReading("", credits, {"text": text, "hint": hint})]
