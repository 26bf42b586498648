"""Checks the sources and types that handlers name; defines the findings of all checks."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from boathook.config import Settings
from boathook.domain.errors import ConfigError
from boathook.domain.filters import Pattern
from boathook.domain.model import Route
from boathook.domain.verification import UNKNOWN_TYPE
from boathook.ingest.sources import compile_verifier
from boathook.providers import find_recipe
from boathook.providers.recipe import EventType, Recipe

if TYPE_CHECKING:
    from boathook.handlers.api import Boathook


class CheckStatus(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One finding of a check."""

    check: str
    verdict: CheckStatus
    found: str
    fix: str = ""
    """The fix, as an instruction; empty if everything is fine."""


_BETWEEN: Final = re.compile(r"[._/: -]+")
_SEPARATOR: Final = re.compile(r"[,;|]")
_CLOSE: Final = 0.75
_CLOSE_TYPE: Final = 0.84
_CLOSE_REST: Final = 0.86


def examine(settings: Settings, routes: Iterable[Route]) -> Iterator[Finding]:
    """Yield problems with the sources and types that handlers name; a handler that fails the check can never run.

    An unknown source is a warning, because another host may serve it. A type is an error if the sender's requests never
    have types. If they do, only likely misspellings are reported, because senders may add types.
    """
    for route in routes:
        if route.source is None:
            continue
        if route.source not in settings.sources:
            yield _unknown_source(settings, route)
        elif (recipe := _recipe(settings, route.source)) is not None:
            yield from _types(recipe, route)


def examine_loaded(settings: Settings, hooks: Mapping[str, "Boathook"]) -> Iterator[Finding]:
    """Yield the sections that no loaded app reads, what apps find, and a `server.app` that declares nothing."""
    app_names = {hook.name for hook in hooks.values()}
    for section in sorted(settings.extra.keys() - app_names):
        fix = f"write [sources.{section}]" if _is_provider(section) else "correct its name or remove it"
        yield Finding("settings", CheckStatus.WARN, f"{settings.file}: nothing reads the section [{section}]", fix)
    for hook in hooks.values():
        yield from _ignored_variables(settings, hook)
        yield from _examine_app(settings, hook)
    app = hooks.get(settings.server.app)
    if app is not None and not (app.handlers or app.manifest.chores or app.manifest.mounts):
        sentence = f"server.app: {settings.server.app} has no handlers, so no event is handled"
        yield Finding("handlers", CheckStatus.WARN, sentence, 'write @hook.on("SOURCE") above each function')


def _ignored_variables(settings: Settings, hook: "Boathook") -> Iterator[Finding]:
    """Yield the set environment variables that an app names as without effect, unless a setting refers to them."""
    for name, (reason, fix) in hook.manifest.ignored_variables.items():
        if os.environ.get(name) and not settings.refers_to(name):
            sentence = f"the environment variable {name} has no effect: {reason}"
            yield Finding(hook.name, CheckStatus.WARN, sentence, fix)


def _examine_app(settings: Settings, hook: "Boathook") -> Iterator[Finding]:
    """Yield what an app's own check finds."""
    manifest = hook.manifest
    if manifest.check is None:
        return
    own = manifest.settings and manifest.settings.model_validate(settings.extra.get(hook.name, {}))
    try:
        for problem, fix in manifest.check(own, settings.server.production):
            yield Finding(hook.name, CheckStatus.WARN, problem, fix)
    except ConfigError as error:
        yield Finding(hook.name, CheckStatus.FAIL, str(error), "correct it; boathook does not start before")


def _is_provider(name: str) -> bool:
    try:
        find_recipe(name)
    except ConfigError:
        return False
    return True


def _unknown_source(settings: Settings, route: Route) -> Finding:
    near = get_close_matches(str(route.source), settings.sources, 1, _CLOSE)
    text = f"{route.recipient} names the source {route.source!r}, which is not configured, so no event reaches it"
    if near:
        return Finding(
            "handlers", CheckStatus.WARN, f"{text}; did you mean {near[0]!r}?", f'use hook.on("{near[0]}", ...)'
        )
    alternatives = f", or use a configured one: {', '.join(settings.sources)}" if settings.sources else ""
    fix = f"add it with `boathook sources add` or as [sources.{route.source}] in boathook.toml{alternatives}"
    return Finding("handlers", CheckStatus.WARN, text, fix)


def _recipe(settings: Settings, source: str) -> Recipe | None:
    try:
        return compile_verifier(settings, source).recipe
    except ConfigError:
        return None  # reported by a finding of its own


def _types(recipe: Recipe, route: Route) -> Iterator[Finding]:
    patterns = [pattern for pattern in route.types if not Pattern(pattern).matches(UNKNOWN_TYPE)]
    if recipe.has_event_types:
        for pattern in patterns:
            if rests := _never_alone(pattern, recipe.type):
                text = (
                    f"{route.recipient} subscribes to {pattern!r} of source {route.source!r}, but the types of"
                    f" {recipe.title} continue after it, such as {f'{pattern}.{rests[0]}'!r}, so no event matches"
                )
                yield Finding("handlers", CheckStatus.FAIL, text, f'write hook.on("{route.source}", "{pattern}.*")')
            elif len(parts := _SEPARATOR.split(pattern)) > 1:
                sentence = f"{route.recipient} subscribes to {pattern!r}, which is one type with a separator in it"
                arguments = ", ".join(f'"{part.strip()}"' for part in (str(route.source), *parts))
                yield Finding("handlers", CheckStatus.WARN, sentence, f"write hook.on({arguments})")
            elif near := _misspelt(pattern, recipe.type):
                text = (
                    f"{route.recipient} subscribes to {pattern!r} of source {route.source!r},"
                    f" which is none of the known types of {recipe.title}; did you mean {near!r}?"
                )
                yield Finding("handlers", CheckStatus.WARN, text, "correct the type in hook.on")
    elif len(patterns) == len(route.types):
        text = (
            f"{route.recipient} subscribes to {', '.join(patterns)} of source {route.source!r}, but requests of the"
            f" provider {recipe.name!r} have no event type: the type of each event is {UNKNOWN_TYPE!r}"
        )
        fix = "remove the types from hook.on, and check the event's body"
        if recipe.configure is not None:
            fix += f"; or set type_header or type_path in sources.{route.source}"
        yield Finding("handlers", CheckStatus.FAIL, text, fix)


def _never_alone(pattern: str, types: EventType) -> list[str]:
    """Return how the sender's types continue after a pattern that is only the beginning of some; else nothing."""
    first, _, rest = pattern.partition(".")
    rests = types.rests.get(first, ())
    if not rest:
        return list(rests)
    return (
        []
        if rest in rests
        else [continuation.removeprefix(f"{rest}.") for continuation in rests if continuation.startswith(f"{rest}.")]
    )


def _with_rest(first: str, rest: str, types: EventType) -> str:
    """Return a known type with the first part *first* and a rest like *rest*; the first part alone if there is none."""
    near = get_close_matches(rest.lower(), types.rests.get(first, ()), 1, _CLOSE_REST) if rest else []
    return f"{first}.{near[0]}" if near else first


def _by_its_words(pattern: str, types: EventType) -> str | None:
    """Return the known type of the same words with other characters between them, such as ``a.b`` for ``a_b``."""
    words = _BETWEEN.sub(" ", pattern.lower())
    whole = (f"{first}.{rest}" for first, rests in types.rests.items() for rest in rests)
    return next(
        (candidate for candidate in (*types.known, *whole) if _BETWEEN.sub(" ", candidate.lower()) == words), None
    )


def _misspelt(pattern: str, types: EventType) -> str | None:
    """Return the known type, or its first part, that a pattern misspells; None if it is known or unlike any."""
    first, _, rest = pattern.partition(".")
    if "*" in first:
        return None
    if first not in types.known:
        near = get_close_matches(first.lower(), types.known, 1, _CLOSE_TYPE)
        return _with_rest(near[0], rest, types) if near else _by_its_words(pattern, types)
    rests = types.rests.get(first, ())
    if not rest or "*" in rest or rest in rests:
        return None
    near = get_close_matches(pattern.lower(), [f"{first}.{further_part}" for further_part in rests], 1, _CLOSE_REST)
    return near[0] if near else None
