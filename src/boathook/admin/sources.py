"""What operators see of the sources of the settings: how each is set up, what comes in, and how to tell its sender."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from boathook.config import Settings, SourceSettings
from boathook.domain.errors import ConfigError, NotFound
from boathook.domain.model import Grade
from boathook.inbound.added import AddedSecrets
from boathook.inbound.gates import is_told, verifier_of
from boathook.inbound.providers import find
from boathook.inbound.providers.proofs import NoProof
from boathook.inbound.providers.recipe import Recipe
from boathook.telemetry.exporters import History


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One source of the settings."""

    name: str
    provider: str
    recipe: Recipe | None
    """As the source has it, or else as the register does; None where there is no such provider."""
    grade: Grade | None
    """What its proof covers; None where its settings are wrong."""
    paths: tuple[str, ...]
    is_inline: bool
    is_unsigned: bool
    trouble: str = ""
    """What keeps it from being started anew; empty where nothing does."""

    @property
    def title(self) -> str:
        """The sender's own name."""
        return self.provider if self.recipe is None else self.recipe.title


def view_of(settings: Settings, name: str, added: AddedSecrets) -> SourceView:
    """Return what is to be seen of a source. Raises NotFound."""
    if name not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise NotFound(f"there is no source {name!r}; the settings have {known}")
    source = settings.sources[name]
    recipe, trouble = _recipe(source.provider), ""
    try:
        recipe = verifier_of(settings, name, added=added).recipe
    except ConfigError as error:
        trouble = str(error)
    graded = None if trouble or recipe is None else recipe.grade
    return SourceView(
        name=name,
        provider=source.provider,
        recipe=recipe,
        grade=Grade.NONE if source.unsigned and graded else graded,
        paths=(f"/in/{name}", *source.paths),
        is_inline=source.mode == "inline",
        is_unsigned=source.unsigned,
        trouble=trouble,
    )


def _recipe(provider: str) -> Recipe | None:
    try:
        return find(provider)
    except ConfigError:
        return None


def base_of(settings: Settings, name: str | None = None) -> str:
    """Return the beginning of the addresses that senders use, without a slash at its end; empty where nobody said."""
    own = settings.sources[name].public_url if name in settings.sources else None
    return (own or settings.server.public_url or "").rstrip("/")


def steps_of(recipe: Recipe, url: str) -> list[str]:
    """Return how a webhook is set up at a sender that is to call *url*."""
    return [step.replace("{url}", url) for step in recipe.setup]


def example_of(recipe: Recipe) -> str:
    """Return the table of a source as it may stand in boathook.toml, with what its owner must fill in."""
    lines = [f"[sources.{recipe.name}]", f'provider = "{recipe.name}"']
    if recipe.takes_secrets and not is_told(SourceSettings(provider=recipe.name)):
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


def traffic(history: History) -> Mapping[str, Traffic]:
    """Return what came in lately at each source, by its name."""
    seen, found = history.to_json(), dict[str, Traffic]()
    metrics, window_s = seen["metrics"], seen["window_s"]
    for one, series in _series(metrics, "boathook_requests_total", found):
        one.requests += series["value"]
        one.requests_lately += series["per_second"] * window_s
    for one, series in _series(metrics, "boathook_rejections_total", found):
        one.refused += series["value"]
        one.refused_lately += series["per_second"] * window_s
    for one, series in _series(metrics, "boathook_events_accepted_total", found):
        one.accepted += series["value"]
    for one, series in _series(metrics, "boathook_duplicates_total", found):
        one.duplicates += series["value"]
    for one, series in _series(metrics, "boathook_signature_skew_seconds", found):
        one.skew_s = series["value"]
    return found


def _series(metrics: Mapping[str, Any], name: str, found: dict[str, Traffic]) -> Iterator[tuple[Traffic, Any]]:
    for series in metrics.get(name, {}).get("series", ()):
        yield found.setdefault(series["labels"]["source"], Traffic()), series
