"""Compiles the settings of each source once, for all of its requests."""

import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from boathook.config import LimitSettings, Settings, SourceSettings
from boathook.db.events import EventStore
from boathook.db.live_settings import LiveSettings
from boathook.domain.errors import BoathookError, ConfigError
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.reply_waiter import InlinePolicy, inline_policy
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.source_rate import SourceRate
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.observability.meters import Counter, Histogram
from boathook.providers import find_recipe
from boathook.providers.recipe import CaptureSecret
from boathook.verification.keyring import KeyRing
from boathook.verification.verifier import SourceSpec, Verifier

_LOG = get_logger("ingest")
_MIB = 1 << 20
_DAY_S = 86_400.0
_CHECK_MARGIN_S = 60.0
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,100}")


class CompiledSource(msgspec.Struct, kw_only=True):
    """One source, ready to verify requests."""

    source: str
    verifier: Verifier
    is_unsigned: bool
    methods: frozenset[str]
    max_body: int
    max_body_key: str
    """The setting that `max_body` is from."""
    encodings: frozenset[str]
    max_decoded: int
    max_ratio: int
    public_url: str
    """Base of the URL that senders use; empty to take it from each request's Host."""
    rate: SourceRate | None
    accepted: Counter
    duplicates: Counter
    acknowledged: Histogram
    """How long accepted events took to be answered."""
    skew_s: Counter
    """The sender's clock minus ours."""
    inline: InlinePolicy | None = None
    """How long senders wait for a handler's reply; None if they are answered once the event is stored."""
    renew: Callable[[], Verifier | None] | None = None
    """For a source with a handshake secret: returns a new verifier once the secret has changed."""
    fresh_until: float = math.inf
    """Time (monotonic) until which the verifier is sure to have the current secrets."""
    ensure_fresh: Callable[[], Awaitable[None]] | None = None
    """Refreshes the secrets once `fresh_until` has passed."""
    keeps_request_id: bool = False
    """Whether the id of a request is stored with its event."""
    request_id_header: bytes | None = None
    """The header with the sender's id of a request, in lower case; None if the ids are our own."""
    answers: dict[int, tuple[Counter, Counter]] = msgspec.field(default_factory=dict)
    """By status: the number of responses, and the time of the newest one of its outcome."""

    @property
    def rate_limited_status(self) -> int:
        """Status for a request beyond the rate limits: 429, or 503 if the sender would stop for good after a 429."""
        return 503 if 429 in self.verifier.recipe.stop_statuses else 429

    def request_id(self, headers: Iterable[tuple[bytes, bytes]], own: str) -> str:
        """Return the sender's id of a request if its source takes it and it is well-formed, else *own*."""
        if self.request_id_header is None:
            return own
        sent = next((value for name, value in headers if name == self.request_id_header), b"")
        return sent.decode("ascii") if _REQUEST_ID.fullmatch(sent) else own

    def reload_secret(self) -> None:
        """Use the handshake secret received meanwhile, if any; another process may have received it."""
        if self.renew is not None:
            self.verifier = self.renew() or self.verifier

    def count_response(self, status: int) -> None:
        """Count one request by the status of its response."""
        answer = self.answers.get(status)
        if answer is None:
            outcome = "failed" if status >= 400 else "succeeded"
            answer = self.answers[status] = (
                meters.counter("boathook_requests_total", source=self.source, status=status),
                meters.gauge_handle("boathook_newest_request_timestamp_seconds", source=self.source, outcome=outcome),
            )
        counter, newest = answer
        counter.value += 1
        newest.value = time.time()


def source_spec(settings: Settings, name: str, added: SecretsCache | None = None) -> SourceSpec:
    """Return the verification spec of one source, with its secrets resolved and its schema read.

    Secrets that operators added come before those of the settings, because the sender probably uses the newest. Without
    *added*, they are read from the file that the last gateway of this host saved.

    Raises:
        ConfigError: a secret or the schema's file is missing; the message names the key.
    """
    return with_cached_secrets(
        settings, configured_spec(settings, name), SecretsCache(settings) if added is None else added
    )


def configured_spec(settings: Settings, name: str) -> SourceSpec:
    """Return the verification spec of one source by its settings alone. Raises ConfigError as `source_spec` does."""
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
        dedup_headers=source.dedup_headers,
        dedup_object=source.dedup_object or "",
        volatile=source.volatile,
        schema=settings.schema_of(name),
        keep=settings.kept_headers,
    )


def with_cached_secrets(settings: Settings, own: SourceSpec, added: SecretsCache) -> SourceSpec:
    """Return the spec with the added secrets first, and the handshake secret if the settings have no secrets."""
    secrets = (*added.of(own.name, time.time()), *(own.secrets or _captured_secret(settings, own.name)))
    return replace(own, secrets=tuple(dict.fromkeys(secrets)))


def _captured_secret(settings: Settings, name: str) -> tuple[str, ...]:
    source = settings.sources[name]
    if source.unsigned or not captures_secret(source):
        return ()
    secret = HandshakeSecrets(settings.server.data_dir).confirmed(name)
    return () if secret is None else (secret,)


def captures_secret(source: SourceSettings) -> bool:
    """Return whether this sender passes its secret in a handshake request."""
    try:
        recipe = find_recipe(source.provider)
    except ConfigError:
        return False  # compiling the source reports the error
    return not source.secrets and any(isinstance(handshake.answer, CaptureSecret) for handshake in recipe.handshakes)


def compile_verifier(
    settings: Settings, name: str, ring: KeyRing | None = None, added: SecretsCache | None = None
) -> Verifier:
    """Compile the verifier of one source, with secrets as in `source_spec`; fetched keys are cached in *ring*.

    Raises:
        ConfigError: a secret is missing, or a setting is impossible; the message names the key.
    """
    return Verifier(source_spec(settings, name, added), ring)


def dedup_days_by_source(settings: Settings) -> dict[str, float]:
    """Return the days of dedup memory by source, where they differ from `retention.dedup_days`.

    Unless configured, dedup memory lasts one day longer than the sender's last retry.
    """
    days = {name: source.dedup_days for name, source in settings.sources.items() if source.dedup_days is not None}
    days |= {
        name: source.dedup_window_s / _DAY_S
        for name, source in settings.sources.items()
        if source.dedup_window_s is not None
    }
    for name, source in settings.sources.items():
        with contextlib.suppress(ConfigError):
            needed = (find_recipe(source.provider).retries_for_days or 0.0) + 1.0
            if name not in days and needed > settings.retention.dedup_days:
                days[name] = needed
    return days


def dedup_windows_by_source(settings: Settings) -> dict[str | None, float]:
    """Return `dedup_window_s` by source, where it is set."""
    return {
        name: source.dedup_window_s for name, source in settings.sources.items() if source.dedup_window_s is not None
    }


def checked_days_by_source(settings: Settings) -> dict[str, float]:
    """Return the days of dedup memory by source for which each event must have its key.

    It is 0 with `dedup_object`, where the newest event of an object takes the place of the one before it. A window ends
    a minute early, because a key of its last seconds may be dropped between two statements of a check.
    """
    days = dedup_days_by_source(settings)
    for name, source in settings.sources.items():
        if source.dedup_object is not None:
            days[name] = 0.0
        elif source.dedup_window_s is not None:
            days[name] = max(0.0, source.dedup_window_s - _CHECK_MARGIN_S) / _DAY_S
    return days


def follow_sources(store: EventStore, settings: Settings) -> None:
    """Let a store remember keys, and refuse repeated bodies, as the settings of the sources say."""
    store.set_dedup_days(dedup_days_by_source(settings))
    store.set_windows(dedup_windows_by_source(settings))
    store.set_refusing(name for name, source in settings.sources.items() if source.repeated_body == "refuse")


def report_dedup_windows(settings: Settings) -> None:
    """Set the metric of how long keys are remembered, of each source."""
    days = dedup_days_by_source(settings)
    for name, source in settings.sources.items():
        window_s = days.get(name, settings.retention.dedup_days) * _DAY_S
        value = window_s if source.dedup_window_s is None else source.dedup_window_s
        meters.gauge("boathook_dedup_window_seconds", value, source=name)


def compile_sources(settings: Settings, added: SecretsCache | None = None) -> dict[str, CompiledSource]:
    """Return the compiled source of every path in use. Raises ConfigError as `compile_verifier` does."""
    paths: dict[str, CompiledSource] = {}
    ring = KeyRing()
    added = SecretsCache(settings) if added is None else added
    for name, source in settings.sources.items():
        paths |= dict.fromkeys(paths_of(name, source.paths), _compile(settings, name, source, ring, added))
    return paths


def paths_of(name: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Return every path of a source; *paths* are those of its settings."""
    return f"/in/{name}", *paths


class CompiledSources:
    """The compiled sources of one gateway, updated when stored sources change.

    A configured source with wrong settings is an error. A stored one must not stop the gateway or affect the others:
    its paths become `unavailable`.

    Args:
        live: the settings with the stored sources.
        added: the secrets that operators have added.

    Raises:
        ConfigError: the settings of a configured source are wrong.
    """

    def __init__(self, live: LiveSettings, added: SecretsCache) -> None:
        self._live = live
        self._added = added
        self._ring = KeyRing()
        self._settings: Settings | None = None
        self._compiled: dict[str, CompiledSource] = {}
        self._problems: dict[str, str] = {}
        self.by_path: Mapping[str, CompiledSource] = {}
        """The source of each path that is served."""
        self.unavailable: Mapping[str, str] = {}
        """The source of each path that would be served if its settings were right."""
        self.update()

    @property
    def by_name(self) -> Mapping[str, CompiledSource]:
        """The sources that are served, by name."""
        return self._compiled

    @property
    def is_known(self) -> bool:
        """Whether the stored sources have been read, from PostgreSQL or from the file of an earlier gateway."""
        return self._live.is_known

    def is_outdated(self, *, has_new_secrets: bool) -> bool:
        """Return whether `update` would change anything: settings have changed, or a missing secret may be there."""
        return self._settings is not self._live.current or (has_new_secrets and bool(self._problems))

    def update(self) -> None:
        """Compile the sources that have changed; the others keep their counters, rate limits and verifiers."""
        settings = self._live.current
        compiled: dict[str, CompiledSource] = {}
        problems: dict[str, str] = {}
        earlier = {} if self._settings is None else self._settings.sources
        for name, source in settings.sources.items():
            former, former_source = self._compiled.get(name), earlier.get(name)
            if former is not None and former_source is source:
                compiled[name] = former
                continue
            try:
                compiled[name] = _compile(settings, name, source, self._ring, self._added)
            except Exception as error:
                if name not in settings.stored:
                    raise
                problems[name] = str(error) if isinstance(error, BoathookError) else repr(error)
            else:
                if former is not None and former_source is not None and _has_same_rate(former_source, source):
                    compiled[name].rate = former.rate
        self._log_problems(problems)
        self._settings, self._compiled, self._problems = settings, compiled, problems
        self.by_path = {
            path: compiled_source
            for name, compiled_source in compiled.items()
            for path in paths_of(name, settings.sources[name].paths)
        }
        self.unavailable = {
            path: row.name
            for row in self._live.rows
            if row.name not in settings.stored or row.name not in compiled
            for path in paths_of(row.name, row.paths)
            if path not in self.by_path
        }

    def _log_problems(self, problems: Mapping[str, str]) -> None:
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                _LOG.error(
                    "stored_source_unavailable", source=name, error=problem, note="its requests are answered 503"
                )


def _has_same_rate(source: SourceSettings, other_source: SourceSettings) -> bool:
    return (source.rate, source.burst) == (other_source.rate, other_source.burst)


def _source_rate(settings: Settings, name: str, source: SourceSettings) -> SourceRate | None:
    if not source.rate:
        return None
    burst = source.burst or max(1, int(source.rate))
    return SourceRate(name, source.rate, burst, gateways=settings.server.gateways)


def _verifier_reloader(
    settings: Settings, name: str, ring: KeyRing, added: SecretsCache
) -> Callable[[], Verifier | None]:
    secrets = _captured_secret(settings, name)

    def renew() -> Verifier | None:
        nonlocal secrets
        captured = _captured_secret(settings, name)
        if captured == secrets:
            return None
        secrets = captured
        return compile_verifier(settings, name, ring, added)

    return renew


def largest_body(limits: LimitSettings, name: str, configured: int | None, documented: int | None) -> tuple[int, str]:
    """Return the maximum body of a source in bytes, and the setting that it is from.

    Args:
        limits: the limits of all sources.
        name: the source's name.
        configured: the source's own `max_body`.
        documented: what its sender documents as its largest body; it counts up to `limits.max_provider_body`.
    """
    if configured is not None:
        return configured, f"sources.{name}.max_body"
    if documented is None or min(documented, limits.max_provider_body) <= limits.max_body:
        return limits.max_body, "limits.max_body"
    if documented > limits.max_provider_body:
        return limits.max_provider_body, "limits.max_provider_body"
    return documented, "the sender's documented maximum"


def show_bytes(size: int) -> str:
    """Return a number of bytes for people: ``1 MiB``, ``262,144 bytes``."""
    return f"{size >> 20:,} MiB" if size >= _MIB and size % _MIB == 0 else f"{size:,} bytes"


def _compile(
    settings: Settings, name: str, source: SourceSettings, ring: KeyRing, added: SecretsCache
) -> CompiledSource:
    limits = settings.limits
    # Before the verifier, so that a secret confirmed between the two is still detected as a change.
    renew = _verifier_reloader(settings, name, ring, added) if captures_secret(source) else None
    verifier = compile_verifier(settings, name, ring, added)
    max_body, max_body_key = largest_body(limits, name, source.max_body, verifier.recipe.max_body)
    encodings = limits.content_encodings if source.content_encodings is None else source.content_encodings
    return CompiledSource(
        source=name,
        verifier=verifier,
        is_unsigned=source.unsigned,
        methods=verifier.methods,
        max_body=max_body,
        max_body_key=max_body_key,
        encodings=frozenset(encodings),
        max_decoded=max(limits.max_decoded, max_body),
        max_ratio=limits.max_ratio,
        public_url=settings.server.public_url if source.public_url is None else source.public_url,
        rate=_source_rate(settings, name, source),
        accepted=meters.counter("boathook_events_accepted_total", source=name),
        duplicates=meters.counter("boathook_duplicates_total", source=name),
        acknowledged=meters.histogram("boathook_ack_seconds", source=name),
        skew_s=meters.gauge_handle("boathook_sender_clock_skew_seconds", source=name),
        inline=inline_policy(settings, name),
        renew=renew,
        keeps_request_id=source.keep_request_id,
        request_id_header=None if source.request_id_header is None else source.request_id_header.lower().encode(),
    )
