"""Reads the sources: their settings, their traffic, and the set-up steps at their providers."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from boathook.config import Settings, SourceSettings
from boathook.config.stored_sources import stored_values
from boathook.db import source_secrets
from boathook.db.live_settings import LiveSettings, decrypt_source
from boathook.db.queries import summaries
from boathook.db.queries.summaries import MAX_SCANNED as MAX_SCANNED  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import LatestSourceEvent, RejectionSummary
from boathook.db.stored_sources import StoredSource
from boathook.domain.errors import BoathookError, ConfigError, NotFound
from boathook.domain.health import Health
from boathook.domain.model import ProofStrength
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import captures_secret, compile_verifier, paths_of
from boathook.ingest.stored_sources_file import read_stored_sources
from boathook.observability.live_metrics import LiveMetrics
from boathook.providers import RECIPES as RECIPES  # noqa: PLC0414 - re-exported
from boathook.providers import find_recipe as find_recipe  # noqa: PLC0414 - re-exported
from boathook.providers.recipe import Recipe as Recipe  # noqa: PLC0414 - re-exported
from boathook.providers.schemes import Asymmetric, NoProof
from boathook.service.shown_settings import hide_secrets
from boathook.service.unit_of_work import AppContext, UnitOfWork


class SourceView(msgspec.Struct, frozen=True, kw_only=True):
    """One source, configured or stored."""

    name: str
    provider: str
    recipe: Recipe | None
    """The recipe with the source's settings, else the registered one; None for an unknown provider."""
    grade: ProofStrength | None
    """The proof strength of its requests; None if its settings are wrong."""
    paths: tuple[str, ...]
    is_inline: bool
    is_unsigned: bool
    captures_secret: bool
    """Whether its sender passes its secret in a handshake."""
    trouble: str = ""
    """The error that would prevent it from starting, or from being served if it is stored; empty if there is none."""
    is_stored: bool = False
    """Whether it is stored in PostgreSQL, so that it can be changed here."""
    stored_problem: str = ""
    """For a configured source: why a stored one with its name is not used; empty if there is none."""
    added_secrets: int = 0
    """How many valid secrets operators have added."""
    created_by: str | None = None
    """For a stored source, as the next fields."""
    created_at: datetime | None = None
    changed_by: str | None = None
    changed_at: datetime | None = None

    @property
    def title(self) -> str:
        """The provider's display name."""
        return self.provider if self.recipe is None else self.recipe.title

    @property
    def takes_secrets(self) -> bool:
        """Whether secrets verify its requests."""
        return not self.is_unsigned and self.recipe is not None and self.recipe.takes_secrets

    @property
    def has_public_keys(self) -> bool:
        """Whether its secrets are public keys."""
        return self.recipe is not None and has_public_key(self.recipe)


class LatestAtSources(msgspec.Struct, frozen=True):
    """The latest events and rejections by source."""

    events: Mapping[str, LatestSourceEvent]
    """Only for sources among the latest `MAX_SCANNED` events of all sources."""
    rejections: Mapping[str, RejectionSummary]


class KnownSources(msgspec.Struct, frozen=True):
    """All sources with the secrets that operators have added, for commands that work without PostgreSQL too."""

    live: LiveSettings
    added: SecretsCache
    health: Mapping[str, Health] = msgspec.field(default_factory=dict)
    """Of each source over the last day; empty without a database."""
    problem: str = ""
    """Why they are those that a gateway of this host saved last; empty if they are those of the database."""

    @property
    def settings(self) -> Settings:
        """The settings with the stored sources."""
        return self.live.current

    def views(self) -> Sequence[SourceView]:
        """Return every source, ordered by name; stored ones that cannot be used too."""
        names = sorted({*self.settings.sources, *self.live.problems})
        return [_view_of_any(self.live, name, self.added) for name in names]

    def view(self, name: str) -> SourceView:
        """Return one source. Raises NotFound."""
        return _view_of_any(self.live, name, self.added)


def read_saved(settings: Settings, problem: str = "") -> KnownSources:
    """Return all sources, with those that a gateway of this host saved last; *problem* says why."""
    live = LiveSettings(settings)
    live.set_rows(read_stored_sources(settings.server.data_dir) or ())
    return KnownSources(live, SecretsCache(live.current), problem=problem)


async def list_all(work: UnitOfWork) -> Sequence[SourceView]:
    """Return every source, ordered by name; stored ones that cannot be used too."""
    return (await _known(work)).views()


async def get(work: UnitOfWork, name: str) -> SourceView:
    """Return one source. Raises NotFound."""
    return (await _known(work)).view(name)


async def _known(work: UnitOfWork) -> KnownSources:
    """Return all sources as this transaction sees them."""
    settings = await work.app_context.refresh_settings(work.connection)
    added = SecretsCache(settings, await source_secrets.list_active(work.connection))
    return KnownSources(work.app_context.live_settings, added)


def _view_of_any(live: LiveSettings, name: str, added: SecretsCache) -> SourceView:
    problem = live.problems.get(name, "")
    if problem and name not in live.current.sources:
        row = next(row for row in live.rows if row.name == name)
        return _with_times(_unusable_view(row, problem), row)
    view = view_of(live.current, name, added)
    if not view.is_stored:
        return replace(view, stored_problem=problem)
    row = next(row for row in live.rows if row.name == name)
    return _with_times(view, row)


def _with_times(view: SourceView, row: StoredSource) -> SourceView:
    return replace(
        view,
        created_by=row.created_by,
        created_at=row.created_at,
        changed_by=row.changed_by,
        changed_at=row.changed_at,
    )


def _unusable_view(row: StoredSource, problem: str) -> SourceView:
    return SourceView(
        name=row.name,
        provider="",
        recipe=None,
        grade=None,
        paths=paths_of(row.name, row.paths),
        is_inline=False,
        is_unsigned=False,
        captures_secret=False,
        trouble=problem,
        is_stored=True,
    )


def read_stored_settings(app_context: AppContext, name: str) -> Mapping[str, Any]:
    """Return the keys of a stored source for display, with secret values hidden; empty if they cannot be read.

    Raises:
        NotFound: there is no stored source of this name.
    """
    settings = app_context.settings
    live = app_context.live_settings
    if name in settings.stored:
        return hide_secrets(stored_values(settings.sources[name]))
    row = next((row for row in live.rows if row.name == name), None)
    if row is None:
        raise NotFound(f"there is no stored source {name}")
    try:
        return hide_secrets(stored_values(decrypt_source(app_context.secret_box, row)))
    except BoathookError:
        return {}


async def read_added_secrets(app_context: AppContext) -> SecretsCache:
    """Return the secrets that operators have added to sources."""
    return SecretsCache(app_context.settings, await source_secrets.list_all(app_context.database))


async def read_latest(work: UnitOfWork, names: Sequence[str]) -> LatestAtSources:
    """Return the latest events and the rejections of these sources."""
    if len(names) == 1:  # the whole range of latest events need not be read
        latest = await summaries.find_latest_of_source(work.connection, names[0])
        events = {} if latest is None else {names[0]: latest}
    else:
        events = dict(await summaries.list_latest_by_source(work.connection))
    return LatestAtSources(events, await summaries.summarize_rejections(work.connection, names))


def view_of(settings: Settings, name: str, added: SecretsCache | None = None) -> SourceView:
    """Return the view of a source. Raises NotFound.

    Args:
        settings: contain the source.
        name: its name.
        added: the secrets that operators have added; None reads those that a gateway of this host saved last.
    """
    source = settings.source(name)
    recipe, trouble = find_provider(source.provider), ""
    try:
        recipe = compile_verifier(settings, name, added=added).recipe
    except ConfigError as error:
        trouble = str(error)
    graded = None if trouble or recipe is None else recipe.grade
    return SourceView(
        name=name,
        provider=source.provider,
        recipe=recipe,
        grade=ProofStrength.NONE if source.unsigned and graded else graded,
        paths=paths_of(name, source.paths),
        is_inline=source.mode == "inline",
        is_unsigned=source.unsigned,
        captures_secret=captures_secret(source),
        trouble=trouble,
        is_stored=name in settings.stored,
        added_secrets=len((SecretsCache(settings) if added is None else added).active_ids(name, time.time())),
    )


def find_provider(provider: str) -> Recipe | None:
    """Return the provider with a name or alias; None if there is none."""
    try:
        return find_recipe(provider)
    except ConfigError:
        return None


def has_public_key(recipe: Recipe) -> bool:
    """Return whether the secrets of this sender's sources are public keys."""
    return isinstance(recipe.proof, Asymmetric)


def takes_handshake_secret(recipe: Recipe) -> bool:
    """Return whether this sender passes its secret in a handshake, so that none has to be entered."""
    return captures_secret(SourceSettings(provider=recipe.name))


def base_url_of(settings: Settings, name: str | None = None) -> str:
    """Return the base of the URLs that senders use, without a trailing slash; empty if not configured."""
    own = settings.sources[name].public_url if name in settings.sources else None
    return (own or settings.server.public_url or "").rstrip("/")


def setup_steps_of(recipe: Recipe, url: str) -> list[str]:
    """Return the steps to set up a webhook to *url* at this provider."""
    return [step.replace("{url}", url) for step in recipe.setup]


def example_config_of(recipe: Recipe) -> str:
    """Return an example table of a source for boathook.toml, with placeholders for required values."""
    lines = [f"[sources.{recipe.name}]", f'provider = "{recipe.name}"']
    if recipe.takes_secrets and not takes_handshake_secret(recipe):
        lines.append(f'secrets = ["env:{recipe.name.upper().replace("-", "_")}_SECRET"]')
    lines += [f'{setting.name} = "..."' for setting in recipe.settings if setting.is_required]
    if recipe.signs_url:
        lines.append('public_url = "https://hooks.example.com"')
    if isinstance(recipe.proof, NoProof):
        lines.append("unsigned = true")
    return "\n".join(lines)


class Traffic(msgspec.Struct):
    """The requests of a source, over all processes of this host."""

    requests: float = 0
    """Since the counters began; the other totals too."""
    accepted: float = 0
    duplicates: float = 0
    refused: float = 0
    recent_requests: float = 0
    """In the last minute, or since this process began if that is less; the next field too."""
    recent_rejections: float = 0
    skew_s: float | None = None
    """The sender's clock minus ours, at the latest verified request."""


def read_traffic(live_metrics: LiveMetrics) -> Mapping[str, Traffic]:
    """Return the recent traffic of each source, by name."""
    now = live_metrics.now()
    recent = live_metrics.recent(now).sources
    traffic = {
        name: Traffic(
            requests=counts.requests,
            accepted=counts.accepted,
            duplicates=counts.duplicates,
            refused=counts.rejected,
            recent_requests=recent[name].requests,
            recent_rejections=recent[name].rejected,
        )
        for name, counts in now.sources.items()
    }
    for (name,), skew_s in now.gauges.get("boathook_sender_clock_skew_seconds", {}).items():
        traffic.setdefault(name, Traffic()).skew_s = skew_s
    return traffic
