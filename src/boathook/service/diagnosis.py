"""Diagnoses rejected requests: the result, the likely cause, and the fix.

The request is verified again as of its arrival, with the current secrets. Nothing is stored.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db.database import Database
from boathook.db.queries import listings
from boathook.db.queries.listings import RejectionRow, StoredRequest
from boathook.domain.errors import ConfigError
from boathook.domain.verification import Reason
from boathook.http_client.fetch import Fetcher
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.verification_io import VerificationIO
from boathook.service.database import with_stored_sources
from boathook.service.reverification import ReverifierCache, SourceReverifier, request_of, why_not_verifiable
from boathook.verification.verifier import Challenge, KeyRequired, Rejected, Request, Verified, Verifier

_MAX_OTHER_SOURCES: Final = 32


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying a rejected request again."""

    outcome: str
    """``holds``, ``refused`` or ``impossible``."""
    seen: str
    """The result of verification now, in one sentence."""
    hint: str = ""
    """The change that would make verification succeed, if a common mistake explains the rejection."""
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DiagnosedRejection:
    """A rejected request as stored, with its diagnosis."""

    row: RejectionRow
    stored: StoredRequest = field(repr=False)
    diagnosis: Diagnosis


async def diagnose(database: Database, settings: Settings, rejection_id: UUID) -> DiagnosedRejection:
    """Return a rejected request with its diagnosis; nothing is stored.

    Raises:
        NotFound: the quarantine has no such request.
    """
    settings = await with_stored_sources(settings, database)
    row, stored = await listings.get_rejection(database, rejection_id)
    if row.event_id is not None:
        seen = "It was verified again and accepted."
        return DiagnosedRejection(row, stored, Diagnosis(outcome="holds", seen=seen, cause="", remedy=""))
    if why := why_not_verifiable(settings, row, stored):
        return DiagnosedRejection(row, stored, _undetermined(row, why))
    with contextlib.closing(Fetcher(settings.outbound.allow)) as fetcher:
        reverifiers = ReverifierCache(
            database, settings, VerificationIO(fetcher.fetch, HandshakeSecrets(settings.server.data_dir))
        )
        try:
            reverifier = await reverifiers.get(row.source)
        except ConfigError as error:
            return DiagnosedRejection(row, stored, _undetermined(row, str(error)))
        others = await _others(reverifiers, settings, row.source)
        return DiagnosedRejection(
            row, stored, await _diagnose_request(reverifier, row, request_of(row, stored), others)
        )


async def _others(reverifiers: ReverifierCache, settings: Settings, source: str) -> list[Verifier]:
    """Return the verifiers of other sources, because the request may have been meant for one of them."""
    found = []
    for name in sorted(settings.sources.keys() - {source})[:_MAX_OTHER_SOURCES]:
        with contextlib.suppress(ConfigError):
            found.append((await reverifiers.get(name)).verifier)
    return found


async def _diagnose_request(
    reverifier: SourceReverifier, row: RejectionRow, request: Request, others: Sequence[Verifier]
) -> Diagnosis:
    if not reverifier.can_read(request):
        return _undetermined(
            row, f"the source does not accept Content-Encoding {request.headers['content-encoding']!r}"
        )
    now = row.refused_at.timestamp()
    match await reverifier.verify(request, now, reverifier.decoder(request)):
        case Verified() as verified:
            return Diagnosis(
                outcome="holds",
                seen=f"With the current secrets it is valid: it is an event {verified.type}.",
                cause="A secret or setting of the source was wrong when it arrived, and has been corrected since.",
                remedy="Verify it again to accept it, and all other rejections of its source.",
            )
        case Rejected() as refused:
            hint = reverifier.hint(request, refused, now, others) or ""
            cause, remedy = explain(refused.reason, hint)
            return Diagnosis(outcome="refused", seen=_sentence(refused.detail), hint=hint, cause=cause, remedy=remedy)
        case KeyRequired():
            return _undetermined(row, "its sender's public key is not available now")
        case Challenge():
            return _undetermined(row, "it is a handshake, not an event")


def _undetermined(row: RejectionRow, why: str) -> Diagnosis:
    cause, remedy = explain(row.reason, "")
    return Diagnosis(outcome="impossible", seen=f"It cannot be verified again: {why}.", cause=cause, remedy=remedy)


def explain(reason: str, hint: str) -> tuple[str, str]:
    """Return the likely cause and the remedy of a rejection, given its hint."""
    for words, explanation in _HINTED:
        if words in hint:
            return explanation
    return _CAUSES.get(reason, ("The reason is unknown.", "Look into boathook's log at that time."))


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


_BODY_CHANGED: Final = (
    "Something between the sender and boathook changed the body: a proxy, a firewall or a framework that parses JSON.",
    "Pass the body on byte for byte; change it behind boathook, if at all.",
)
_SECRET_WRITTEN: Final = (
    "The secret is right, but its encoding is not the one that the sender uses.",
    "Set the provider, or the encoding of the secret, as the hint says, then verify its requests again.",
)
_WRONG_ADDRESS: Final = (
    "It was sent to the wrong address, or the secrets of two sources were swapped.",
    "Compare the URL in the sender's settings with the source's path, and the secrets of both sources.",
)
_LATE: Final = (
    "It arrived later than the source's tolerance allows: it was delayed or replayed, or clocks differ.",
    "Synchronize this machine's clock (NTP). If the sender retries for a long time, raise the source's tolerance_s.",
)
_OTHER_SCHEME: Final = (
    "The sender signs with another scheme than this source expects.",
    "Set the source's provider, or its scheme, according to the header that was found.",
)
_HINTED: Final = (
    (": a proxy ", _BODY_CHANGED),
    ("if the secret were", _SECRET_WRITTEN),
    ("it would match as", _OTHER_SCHEME),
    ("would have accepted it", _WRONG_ADDRESS),
    ("there is a header", _OTHER_SCHEME),
    ("the clocks differ", _LATE),
)
_WRONG_SECRET: Final = (
    "Most likely the secret of this source is not the one that the sender signs with; or it is a forgery.",
    "Copy the signing secret from the sender's settings into the source, then verify its requests again.",
)
_NO_SIGNATURE: Final = (
    "The signature's header is missing: the sender does not sign yet, a proxy drops it, or this is not the sender.",
    "Enable signing in the sender's settings, and let proxies pass its headers on.",
)
_BAD_TIMESTAMP: Final = (
    "The timestamp is missing or cannot be read, so a replay cannot be distinguished from the original.",
    "Check that the source's provider is the sender's; let proxies pass headers on.",
)
_BAD_ID: Final = (
    "The request has no id in the format that its sender uses.",
    "Check that the source's provider is the sender's.",
)
_CAUSES: Final[dict[str, tuple[str, str]]] = {
    Reason.SIGNATURE_MISSING: _NO_SIGNATURE,
    Reason.SIGNATURE_MALFORMED: (
        "The signature is not in the format that this sender uses.",
        "Check that the source's provider and scheme are the sender's.",
    ),
    Reason.SIGNATURE_MISMATCH: _WRONG_SECRET,
    Reason.UNKNOWN_SCHEME: _OTHER_SCHEME,
    Reason.TIMESTAMP_MISSING: _BAD_TIMESTAMP,
    Reason.TIMESTAMP_MALFORMED: _BAD_TIMESTAMP,
    Reason.TIMESTAMP_TOO_OLD: _LATE,
    Reason.TIMESTAMP_IN_FUTURE: (
        "The sender's clock is ahead of this machine's, or this one is behind.",
        "Synchronize the clock of this machine (NTP), then verify the request again.",
    ),
    Reason.ID_MISSING: _BAD_ID,
    Reason.ID_MALFORMED: _BAD_ID,
    Reason.TOKEN_MISSING: (
        "The header or parameter with the token is missing: it is not set at the sender, or a proxy drops it.",
        "Set the token in the sender's settings, and let proxies pass it on.",
    ),
    Reason.TOKEN_MISMATCH: (
        "The token at the sender is not that of this source; or a client is guessing tokens.",
        "Copy the source's token to the sender's settings. Tokens are never stored: ask the sender to resend it.",
    ),
    Reason.KEY_UNAVAILABLE: (
        "The sender's public key could not be fetched when it arrived; the cause is on this host or its network.",
        "Let boathook reach the URL of the sender's keys, then verify the request again.",
    ),
    Reason.ADDRESS_NOT_ALLOWED: (
        "It came from an address that the source does not allow; behind a proxy, that may be the proxy's.",
        "Add the sender's addresses to the source, or add the proxy to server.trusted_proxies.",
    ),
    Reason.CHALLENGE_REFUSED: (
        "The sender's handshake did not match the source's settings.",
        "Set up the webhook at the sender again, with the source's secret or token.",
    ),
    Reason.BODY_MALFORMED: (
        "The signature is valid, but the body does not have the sender's format.",
        "Look at the bytes below. If they are right, the source has the wrong provider.",
    ),
    Reason.BODY_TOO_LARGE: (
        "The body is larger than boathook accepts.",
        "Raise the limit for this source if needed; the sender must send the request again.",
    ),
    Reason.BODY_INVALID: (
        "The signature is valid, but the body does not fit the source's schema.",
        "Correct the schema of the source, or ask the sender to correct the body; then verify it again.",
    ),
}
