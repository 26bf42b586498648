"""The reseller's remaining credits: asked for through its API, kept for the status, and a gauge with an alert.

Sources: https://docs.sunoapi.org/suno-api/get-remaining-credits, https://docs.kie.ai/common-api and
https://docs.sunoapi.com/get-credits.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_music import lookup
from boathook_music.app import gettext, hook, settings
from boathook_music.lookup import LookupFailed

PATHS: Final = {"api.kie.ai": "/api/v1/chat/credit", "api.sunoapi.com": "/api/v1/get-credits"}
"""The route of a reseller's API by its host; those that are not listed have `USUAL_PATH`."""
USUAL_PATH: Final = "/api/v1/generate/credit"
_MAX: Final = 10**12
SQL: Final = load_statements(__file__)


def read_credits(body: bytes) -> int:
    """Return the number of credits that a response names. Raises LookupFailed: it names none."""
    document = lookup.read_document(body)
    if "credits" in document:
        # Additional ones are spent first: the sum is what is left.
        values = [document["credits"], document.get("extra_credits", 0)]
    else:
        values = [lookup.data_of(document)]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or not all(0 <= number < _MAX for number in numbers):
        raise LookupFailed(gettext("the response names no number of credits"), concerns_all=True)
    return int(sum(numbers))


async def ask_due() -> None:
    """Ask for the credits, if that is configured and the last request, of any process, is long enough ago."""
    config = settings().lookup
    if not (config.key and config.credits_every_s):
        return
    async with hook.transaction() as tx:
        if not await tx.fetchval(SQL["claim_request"], config.credits_every_s):
            return
    path = config.credits_path or PATHS.get(urlsplit(config.url).hostname or "", USUAL_PATH)
    try:
        credits = read_credits(await lookup.fetch(path, config))
    except LookupFailed as error:
        hook.log.warning("music_credits_unknown", error=str(error))
        async with hook.transaction() as tx:
            await tx.execute(SQL["note_failure"], str(error)[:500])
        return
    async with hook.transaction() as tx:
        await tx.execute(SQL["note_credits"], credits)


async def known(tx: Transaction) -> Mapping[str, Any]:
    """Return ``credits``, ``credits_at`` and ``credits_error``; all are None before the first response."""
    row = await tx.fetchrow("select credits, read_at as credits_at, error as credits_error from music.credit")
    return dict(row) if row else dict.fromkeys(("credits", "credits_at", "credits_error"))
