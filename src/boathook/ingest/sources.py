"""What stands between strangers and each source: the settings of a source, compiled once for every request."""

import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from boathook.config import Settings, SourceSettings
from boathook.domain.errors import ConfigError
from boathook.http.limits import RateLimiter
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.reply_waiter import InlinePolicy, inline_policy
from boathook.ingest.secrets_cache import SecretsCache
from boathook.observability import meters
from boathook.observability.meters import Counter
from boathook.observability.tracing import HEADER
from boathook.providers import find_recipe
from boathook.providers.recipe import CaptureSecret
from boathook.verification.keyring import KeyRing
from boathook.verification.verifier import SourceSpec, Verifier


@dataclass(slots=True, kw_only=True)
class CompiledSource:
    """One source, ready to judge."""

    source: str
    verifier: Verifier
    is_unsigned: bool
    methods: frozenset[str]
    max_body: int
    encodings: frozenset[str]
    max_decoded: int
    max_ratio: int
    public_url: str
    """Base of the address senders use; empty: taken from each request's Host."""
    rate: RateLimiter | None
    accepted: Counter
    duplicates: Counter
    skew_s: Counter
    """Sender's clock minus ours."""
    inline: InlinePolicy | None = None
    """How long senders wait for a handler's reply; None where they are answered once the event is stored."""
    renew: Callable[[], Verifier | None] | None = None
    """For a source whose secret its sender tells: gives the verifier with the secret once that has changed."""
    fresh_until: float = math.inf
    """Until when (monotonic) the verifier is known to have the present secrets, as far as anybody can know."""
    ensure_fresh: Callable[[], Awaitable[None]] | None = None
    """Finds out, where that moment has passed."""
    answers: dict[int, Counter] = field(default_factory=dict)

    @property
    def rate_limited_status(self) -> int:
        """What a request beyond the rates is answered: 429, or 503 to senders who would never come again after that."""
        return 503 if 429 in self.verifier.recipe.stop_statuses else 429

    def reload_secret(self) -> None:
        """Verify with the secret the sender has told meanwhile, if there is one; another process may have heard it."""
        if self.renew is not None:
            self.verifier = self.renew() or self.verifier

    def count_response(self, status: int) -> None:
        """Count one request by the status it was answered with."""
        counter = self.answers.get(status)
        if counter is None:
            counter = self.answers[status] = meters.counter(
                "boathook_requests_total", source=self.source, status=status
            )
        counter.value += 1


def source_spec(settings: Settings, name: str, added: SecretsCache | None = None) -> SourceSpec:
    """Return what verification needs to know of one source, its secrets resolved and its schema read.

    Secrets that operators have added count besides those of the settings, and before them, as the younger ones are
    what the sender knows; where *added* is not given, they are those that a gateway of this machine was last told of.

    Raises:
        ConfigError: a secret or the schema's file is missing; the message names the key.
    """
    return with_cached_secrets(
        settings, configured_spec(settings, name), SecretsCache(settings) if added is None else added
    )


def configured_spec(settings: Settings, name: str) -> SourceSpec:
    """Return what the settings alone tell verification of one source. Raises ConfigError as `source_spec` does."""
    source = settings.sources[name]
    return SourceSpec(
        name=name,
        provider=source.provider,
        secrets=settings.secrets_of(name),
        public_url=settings.server.public_url if source.public_url is None else source.public_url,
        addresses=tuple(map(str, source.addresses)),
        methods=frozenset(source.methods or ()),
        options=settings.options_of(name),
        unsigned=source.unsigned,
        tolerance_s=source.tolerance_s,
        dedup_fields=source.dedup_fields,
        schema=settings.schema_of(name),
        keep=(HEADER,) if settings.tracing.is_on and settings.tracing.incoming != "ignore" else (),
    )


def with_cached_secrets(settings: Settings, own: SourceSpec, added: SecretsCache) -> SourceSpec:
    """Return what verification needs to know, besides the settings with what was added or told."""
    secrets = (*added.of(own.name, time.time()), *(own.secrets or _captured_secret(settings, own.name)))
    return replace(own, secrets=tuple(dict.fromkeys(secrets)))


def _captured_secret(settings: Settings, name: str) -> tuple[str, ...]:
    source = settings.sources[name]
    if source.unsigned or not captures_secret(source):
        return ()
    secret = HandshakeSecrets(settings.server.data_dir).confirmed(name)
    return () if secret is None else (secret,)


def captures_secret(source: SourceSettings) -> bool:
    """Return whether this sender tells its secret itself, in a request."""
    try:
        recipe = find_recipe(source.provider)
    except ConfigError:
        return False  # compiling the source says what is wrong
    return not source.secrets and any(isinstance(handshake.answer, CaptureSecret) for handshake in recipe.handshakes)


def compile_verifier(
    settings: Settings, name: str, ring: KeyRing | None = None, added: SecretsCache | None = None
) -> Verifier:
    """Compile the verification of one source, its secrets as `source_spec` has them; fetched keys are kept in *ring*.

    Raises:
        ConfigError: a secret is missing, or a setting impossible; the message names the key.
    """
    return Verifier(source_spec(settings, name, added), ring)


def dedup_days_by_source(settings: Settings) -> dict[str, float]:
    """Return the days that sources are remembered, by name, where they differ from `retention.dedup_days`.

    A memory that the owner has not set outlives the last retry of its sender by a day.
    """
    days = settings.dedup_days_of()
    for name, source in settings.sources.items():
        with contextlib.suppress(ConfigError):
            needed = (find_recipe(source.provider).retries_for_days or 0.0) + 1.0
            if name not in days and needed > settings.retention.dedup_days:
                days[name] = needed
    return days


def compile_sources(settings: Settings, added: SecretsCache | None = None) -> dict[str, CompiledSource]:
    """Return the gate of every path that sources listen on. Raises ConfigError as `compile_verifier` does."""
    paths: dict[str, CompiledSource] = {}
    ring = KeyRing()
    added = SecretsCache(settings) if added is None else added
    for name, source in settings.sources.items():
        compiled = _compile(settings, name, source, ring, added)
        for path in (f"/in/{name}", *source.paths):
            paths[path] = compiled
    return paths


def _verifier_reloader(
    settings: Settings, name: str, ring: KeyRing, added: SecretsCache
) -> Callable[[], Verifier | None]:
    secrets = _captured_secret(settings, name)

    def renew() -> Verifier | None:
        nonlocal secrets
        found = _captured_secret(settings, name)
        if found == secrets:
            return None
        secrets = found
        return compile_verifier(settings, name, ring, added)

    return renew


def _compile(
    settings: Settings, name: str, source: SourceSettings, ring: KeyRing, added: SecretsCache
) -> CompiledSource:
    limits = settings.limits
    # Before the verifier, so that a secret confirmed between the two is still seen as a change.
    renew = _verifier_reloader(settings, name, ring, added) if captures_secret(source) else None
    verifier = compile_verifier(settings, name, ring, added)
    encodings = limits.content_encodings if source.content_encodings is None else source.content_encodings
    return CompiledSource(
        source=name,
        verifier=verifier,
        is_unsigned=source.unsigned,
        methods=verifier.methods,
        max_body=source.max_body or limits.max_body,
        encodings=frozenset(encodings),
        max_decoded=limits.max_decoded,
        max_ratio=limits.max_ratio,
        public_url=settings.server.public_url if source.public_url is None else source.public_url,
        rate=RateLimiter(source.rate, source.burst or max(1, int(source.rate))) if source.rate else None,
        accepted=meters.counter("boathook_events_accepted_total", source=name),
        duplicates=meters.counter("boathook_duplicates_total", source=name),
        skew_s=meters.gauge_handle("boathook_sender_clock_skew_seconds", source=name),
        inline=inline_policy(settings, name),
        renew=renew,
    )
