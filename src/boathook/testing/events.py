"""Makes events as handlers get them, from the samples of the providers."""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from boathook.domain import ids
from boathook.domain.errors import ConfigError
from boathook.domain.json_document import encode
from boathook.domain.model import Origin, ProofStrength
from boathook.domain.verification import SourceSpec, Verified
from boathook.handlers.event import Event, SideEffects
from boathook.ingest.event_builder import FORM_CONTENT_TYPE
from boathook.providers import find_recipe
from boathook.providers.recipe import Recipe
from boathook.service.receiving.source_trial import sample_request
from boathook.verification.provider_signer import to_request
from boathook.verification.source import resolve_source
from boathook.verification.verifier import Verifier

_UNASSIGNED: Final = "handler:test"
"""The recipient of an event before `run` chooses its handlers."""
_RANDOM_BITS: Final = 80


class RememberedEffects(SideEffects):
    """Runs the side effects of one handler, and remembers their results in memory.

    Args:
        results: by name.
    """

    def __init__(self, results: dict[str, Any] | None = None) -> None:
        self.results = {} if results is None else results
        self._by_recipient: dict[str, RememberedEffects] = {}

    def of(self, recipient: str) -> "RememberedEffects":
        """Return the side effects of one handler for this event."""
        return self._by_recipient.setdefault(recipient, RememberedEffects())

    async def once(self, name: str, do: Callable[[], Awaitable[Any]], *, ends_with_handler: bool) -> Any:  # noqa: ARG002
        """Return the remembered result of *name*, or run *do* and remember its result."""
        if name not in self.results:
            self.results[name] = self.read_back(name, await do())
        return self.results[name]

    def once_sync(self, name: str, do: Callable[[], Any]) -> Any:
        """Do the same in the calling thread."""
        if name not in self.results:
            self.results[name] = self.read_back(name, do())
        return self.results[name]


def event(
    source: str | None = None,
    *,
    type: str | None = None,
    json: Any = None,
    fields: Mapping[str, Any] | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    id: str | None = None,
    application: str | None = None,
    provider: str | None = None,
    attempt: int = 1,
    item: int = 0,
    **settings: Any,
) -> Event:
    """Return an event as a handler gets it, from a request as its sender would make it.

    Without *json* and *body* it has the provider's sample. The event type, and an event id if there is none, are set
    where the sender states them. The results of ``event.once`` are remembered in memory.

    Args:
        source: The source's name; None with *application*.
        type: The event type as boathook reads it, such as ``issues.opened``; None keeps that of the body.
        json: The body, as a JSON value.
        fields: JSON values by dotted path, to set in the body: ``{"data.object.amount": 500}``.
        body: The body's bytes.
        headers: Headers to add.
        id: The sender's event id.
        application: The application, for an event published by `Boathook.publish` instead of received by a source.
        provider: The source's provider, if its name is another one.
        attempt: The number of this attempt.
        item: Which item the event delivers, from 0, if the request is a batch.
        settings: The source's own settings, as in boathook.toml: ``provider="hmac", type_path="event"``.

    Raises:
        ConfigError: the provider is unknown, an argument is missing or contradicts another, or the sender would not
            send such a request.
    """
    body = choose_body("event", json, body)
    own_headers = {name.lower(): value for name, value in (headers or {}).items()}
    if application is not None:
        if source is not None:
            raise ConfigError("event takes a source or application=, not both")
        return _published(application, type, body or b"{}", own_headers, id, attempt)
    if source is None:
        raise ConfigError('event needs a source, such as event("stripe", ...), or application=')
    recipe = _recipe_of(source, provider)
    options = {**recipe.sample.settings, **settings}
    spec = SourceSpec(name=source, provider=recipe.name, options=options, unsigned=True)
    resolved = resolve_source(spec)
    request = to_request(
        sample_request(resolved, source, id=id, type=type, fields=fields, body=body, headers=own_headers)
    )
    verified = Verifier(spec).verify(request, time.time())
    if not isinstance(verified, Verified):
        detail = getattr(verified, "detail", "it is a handshake, not an event")
        raise ConfigError(f"event({source!r}): {resolved.recipe.title} sends no such request: {detail}")
    number = max(1, len(verified.items))
    if not 0 <= item < number:
        raise ConfigError(f"event({source!r}): this request has items 0 to {number - 1}, and not {item}")
    item_event = verified.items[item] if verified.items else None
    actual_type = verified.type if item_event is None else item_event.type
    if type is not None and actual_type != type:
        raise ConfigError(
            f"event({source!r}): the type of this request is {actual_type!r}, not {type!r}:"
            f" {resolved.recipe.title} states it"
            " elsewhere; leave type= out, and set it in json= or headers="
        )
    is_form = verified.query is not None
    return _event(
        source=source,
        application=None,
        type=actual_type,
        dedup_key=verified.dedup_key if item_event is None else item_event.dedup_key,
        grade=resolved.recipe.grade,
        origin=Origin.RECEIVED,
        headers=verified.kept_headers,
        content_type=FORM_CONTENT_TYPE if is_form else request.headers.get("content-type", ""),
        body=request.body if verified.query is None else verified.query,
        attempt=attempt,
        item_path=None if item_event is None else item_event.path,
    )


def choose_body(caller: str, json: Any, body: bytes | None) -> bytes | None:
    """Return the body that was given as a JSON value or as bytes. Raises ConfigError if both were given."""
    if json is None:
        return body
    if body is not None:
        raise ConfigError(f"{caller} takes json= or body=, not both")
    return encode(json)


def _recipe_of(source: str, provider: str | None) -> Recipe:
    try:
        return find_recipe(provider or source)
    except ConfigError as error:
        fix = "" if provider else '; for a source with another name than its provider add provider="..."'
        raise ConfigError(f"event({source!r}): {error}{fix}") from None


def _published(
    application: str, type: str | None, body: bytes, headers: dict[str, str], id: str | None, attempt: int
) -> Event:
    if type is None:
        raise ConfigError("a published event needs type=, such as invoice.paid")
    content_type = headers.pop("content-type", "application/json")
    return _event(
        source=None,
        application=application,
        type=type,
        dedup_key=id,
        grade=ProofStrength.NONE,
        origin=Origin.PUBLISHED,
        headers=headers,
        content_type=content_type,
        body=body,
        attempt=attempt,
        item_path=None,
    )


def _event(*, dedup_key: str | None, **values: Any) -> Event:
    now = time.time()
    event_id = ids.make(int(now * 1000), secrets.randbits(_RANDOM_BITS))
    return Event(
        id=event_id,
        dedup_key=dedup_key or ids.show(ids.EVENT, event_id),
        accepted_at=datetime.fromtimestamp(now, UTC),
        recipient=_UNASSIGNED,
        _effects=RememberedEffects(),
        **values,
    )
