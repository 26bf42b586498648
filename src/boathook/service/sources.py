"""Reads the sources of the settings: how each is set up, what arrives, and the steps at its provider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from boathook.config import Settings, SourceSettings
from boathook.db import source_secrets
from boathook.db.queries import source_stats
from boathook.db.queries.source_stats import MAX_SCANNED as MAX_SCANNED  # noqa: PLC0414 - how far they look
from boathook.db.queries.source_stats import LatestSourceEvent, RejectionSummary
from boathook.domain.errors import ConfigError, NotFound
from boathook.domain.model import ProofStrength
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import captures_secret, compile_verifier
from boathook.observability.live_metrics import LiveMetrics
from boathook.providers import RECIPES, find_recipe
from boathook.providers.recipe import Recipe
from boathook.providers.schemes import Asymmetric, NoProof
from boathook.service.unit_of_work import AppContext, UnitOfWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One source of the settings."""

    name: str
    provider: str
    recipe: Recipe | None
    """As the source has it, or else as the register does; None where there is no such provider."""
    grade: ProofStrength | None
    """What its proof covers; None where its settings are wrong."""
    paths: tuple[str, ...]
    is_inline: bool
    is_unsigned: bool
    captures_secret: bool
    """Whether its sender tells its secret by itself."""
    trouble: str = ""
    """What keeps it from being started anew; empty where nothing does."""

    @property
    def title(self) -> str:
        """The sender's own name."""
        return self.provider if self.recipe is None else self.recipe.title

    @property
    def takes_secrets(self) -> bool:
        """Whether secrets prove its requests."""
        return not self.is_unsigned and self.recipe is not None and self.recipe.takes_secrets

    @property
    def has_public_keys(self) -> bool:
        """Whether its secrets are the public halves of keys."""
        return self.recipe is not None and isinstance(self.recipe.proof, Asymmetric)


@dataclass(frozen=True, slots=True)
class LatestAtSources:
    """What came in last at each source, by its name."""

    events: Mapping[str, LatestSourceEvent]
    """Of the sources that the latest `MAX_SCANNED` events of all came from."""
    rejections: Mapping[str, RejectionSummary]


async def list_all(app_context: AppContext) -> Sequence[SourceView]:
    """Return every source of the settings, in the order of their names."""
    added = await read_added_secrets(app_context)
    return [view_of(app_context.settings, name, added) for name in sorted(app_context.settings.sources)]


async def get(app_context: AppContext, name: str) -> SourceView:
    """Return one source of the settings. Raises NotFound."""
    return view_of(app_context.settings, name, await read_added_secrets(app_context))


async def read_added_secrets(app_context: AppContext) -> SecretsCache:
    """Return the secrets that operators have added to sources."""
    return SecretsCache(app_context.settings, await source_secrets.list_all(app_context.database))


async def read_latest(work: UnitOfWork, names: Sequence[str]) -> LatestAtSources:
    """Return the latest events of all sources, and what was refused at these."""
    return LatestAtSources(
        await source_stats.latest_events(work.connection),
        await source_stats.summarize_rejections(work.connection, names),
    )


def list_providers() -> Sequence[Recipe]:
    """Return every provider that boathook knows by name, in the order listings show them."""
    return RECIPES


def get_provider(provider: str) -> Recipe:
    """Return the provider of a name or alias. Raises ConfigError, which offers the nearest names."""
    return find_recipe(provider)


def view_of(settings: Settings, name: str, added: SecretsCache | None = None) -> SourceView:
    """Return what is to be seen of a source. Raises NotFound.

    Args:
        settings: have the source.
        name: its name.
        added: the secrets that operators have added; None: those a gateway of this machine read last.
    """
    if name not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise NotFound(f"unknown source {name!r}; configured: {known}")
    source = settings.sources[name]
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
        paths=(f"/in/{name}", *source.paths),
        is_inline=source.mode == "inline",
        is_unsigned=source.unsigned,
        captures_secret=captures_secret(source),
        trouble=trouble,
    )


def find_provider(provider: str) -> Recipe | None:
    """Return the provider of a name or alias; None if there is none."""
    try:
        return find_recipe(provider)
    except ConfigError:
        return None


def base_url_of(settings: Settings, name: str | None = None) -> str:
    """Return the beginning of the addresses that senders use, without a slash at its end; empty where nobody said."""
    own = settings.sources[name].public_url if name in settings.sources else None
    return (own or settings.server.public_url or "").rstrip("/")


def setup_steps_of(recipe: Recipe, url: str) -> list[str]:
    """Return how a webhook is set up at a sender that is to call *url*."""
    return [step.replace("{url}", url) for step in recipe.setup]


def example_config_of(recipe: Recipe) -> str:
    """Return the table of a source as it may stand in boathook.toml, with what its owner must fill in."""
    lines = [f"[sources.{recipe.name}]", f'provider = "{recipe.name}"']
    if recipe.takes_secrets and not captures_secret(SourceSettings(provider=recipe.name)):
        lines.append(f'secrets = ["env:{recipe.name.upper().replace("-", "_")}_SECRET"]')
    lines += [f'{one.name} = "..."' for one in recipe.settings if one.is_required]
    if recipe.signs_url:
        lines.append('public_url = "https://hooks.example.com"')
    if isinstance(recipe.proof, NoProof):
        lines.append("unsigned = true")
    return "\n".join(lines)


@dataclass(slots=True)
class Traffic:
    """What came in at a source, over all processes of this machine."""

    requests: float = 0
    """Since the counters began, as the others."""
    accepted: float = 0
    duplicates: float = 0
    refused: float = 0
    requests_lately: float = 0
    """Of the last minute, or of the time since this process began where that is less; as the next one."""
    refused_lately: float = 0
    skew_s: float | None = None
    """The sender's clock minus ours, at the latest verified request."""


def read_traffic(live_metrics: LiveMetrics) -> Mapping[str, Traffic]:
    """Return what came in lately at each source, by its name."""
    now = live_metrics.now()
    lately = live_metrics.recent(now).sources
    traffic = {
        name: Traffic(
            requests=counts.requests,
            accepted=counts.accepted,
            duplicates=counts.duplicates,
            refused=counts.rejected,
            requests_lately=lately[name].requests,
            refused_lately=lately[name].rejected,
        )
        for name, counts in now.sources.items()
    }
    for (name,), skew_s in now.gauges.get("boathook_sender_clock_skew_seconds", {}).items():
        traffic.setdefault(name, Traffic()).skew_s = skew_s
    return traffic
