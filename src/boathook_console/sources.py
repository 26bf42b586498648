"""Pages of sources and providers."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from types import MappingProxyType
from typing import Any, Final

from starlette.responses import Response

from boathook.domain.errors import AlreadyExists, ConfigError, InvalidState, InvalidValue, LimitReached
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import source_secrets as secret_actions
from boathook.service.catalogue import sources as actions
from boathook.service.fields import Field
from boathook.service.limits import MAX_SOURCE_SECRET_GRACE
from boathook.service.operating import recipient_stats
from boathook.service.operating.live_stats import format_duration
from boathook.service.operating.recipient_stats import DEFAULT_RANGE, STATS_RANGES
from boathook.service.receiving import sources
from boathook.service.receiving.source_fields import common_fields, recipe_fields
from boathook.service.receiving.source_trial import TEST_USER_AGENT, SourceTestStep, run_source_test
from boathook.service.receiving.sources import (
    Recipe,
    SourceView,
    Traffic,
    base_url_of,
    example_config_of,
    read_traffic,
    setup_steps_of,
)
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared.attempt_charts import range_values, read_range
from boathook_console.source_forms import (
    ELSEWHERE,
    choices_of,
    problem_of,
    read_settings,
    shown_values,
    submitted_values,
)

routes = Routes()

_GRACE_PERIODS: Final = (
    ("", "never expire"),
    ("1", "expire in an hour"),
    ("24", "expire in a day"),
    ("168", "expire in a week"),
    ("0", "expire now"),
)
_PROPAGATION_TIME: Final = "five seconds"


@routes.get("/sources", Permission.SOURCE_VIEW)
async def list_sources(context: ConsoleContext) -> Response:
    """Show every source with its recent traffic."""
    async with context.work() as work:
        views = await sources.list_all(work)
        latest = await sources.read_latest(work, [view.name for view in views])
    app_context = context.app_context
    health = await recipient_stats.read_source_health(
        app_context.database, app_context.settings, STATS_RANGES[DEFAULT_RANGE], datetime.now(UTC)
    )
    return context.page(
        "sources/list.html",
        views=views,
        health=health,
        health_title=STATS_RANGES[DEFAULT_RANGE].title,
        traffic=read_traffic(context.state.live_metrics),
        nothing=Traffic(),
        events=latest.events,
        refusals=latest.rejections,
        looked_at=sources.MAX_SCANNED,
    )


@routes.get("/sources-senders", Permission.SOURCE_VIEW)
async def list_providers(context: ConsoleContext) -> Response:
    """Show the supported providers."""
    return context.page("sources/providers.html", recipes=sources.RECIPES)


@routes.get("/sources-senders/{provider}", Permission.SOURCE_VIEW)
async def show_provider(context: ConsoleContext) -> Response:
    """Show how to set up a source of one provider."""
    recipe = sources.find_recipe(context.path["provider"])
    return context.page(
        "sources/provider.html",
        recipe=recipe,
        example=example_config_of(recipe),
        **_setup(context, recipe, f"/in/{recipe.name}"),
    )


@routes.get("/sources/{name}", Permission.SOURCE_VIEW)
async def show_source(context: ConsoleContext, status: int = 200, error: InvalidValue | None = None) -> Response:
    """Show one source."""
    name = context.path["name"]
    async with context.work() as work:
        view = await sources.get(work, name)
    range_name = read_range(context.query, DEFAULT_RANGE)
    stats = await recipient_stats.read_source(context.app_context, name, STATS_RANGES[range_name], datetime.now(UTC))
    async with context.work() as work:
        lines = (await secret_actions.list_secrets(work, secret_actions.SourceNamed(source=name))).data
        latest = await sources.read_latest(work, [name])
    return context.page(
        "sources/show.html",
        status,
        view=view,
        lines=lines,
        graces=_GRACE_PERIODS,
        captures_secret=view.captures_secret,
        takes_secrets=view.takes_secrets,
        is_key=view.has_public_keys,
        traffic=read_traffic(context.state.live_metrics).get(name, Traffic()),
        event=latest.events.get(name),
        refusals=latest.rejections[name],
        looked_at=sources.MAX_SCANNED,
        mark=TEST_USER_AGENT,
        error=error,
        stats=stats,
        stored=sources.read_stored_settings(context.app_context, name) if view.is_stored else {},
        took=format_duration,
        **_setup(context, view.recipe, view.paths[0], name),
        **range_values(range_name),
    )


@routes.get("/sources-new/{provider}", Permission.SOURCE_MANAGE)
async def show_new(context: ConsoleContext) -> Response:
    """Show the form for a new source of a provider."""
    recipe = sources.find_recipe(context.path["provider"])
    async with context.work() as work:
        taken_names = {view.name for view in await sources.list_all(work)}
    names = chain((recipe.name,), (f"{recipe.name}-{number}" for number in count(2)))
    return _form(context, recipe, {"name": next(name for name in names if name not in taken_names)})


@routes.post("/sources-new/{provider}", Permission.SOURCE_MANAGE)
async def add_source(context: ConsoleContext) -> Response:
    """Store a new source; show its generated secret, only in this response."""
    recipe = sources.find_recipe(context.path["provider"])
    fields = [*recipe_fields(recipe), *common_fields(recipe)]
    name, is_generated = context.field("name").strip(), bool(context.field("generate"))
    try:
        values = {key: value for key, value in read_settings(context.form, fields).items() if value is not None}
        async with context.work() as work:
            new = actions.NewSource(
                name=name,
                provider=recipe.name,
                settings=values,
                secret=None if is_generated else context.field("secret").strip() or None,
                generate_secret=is_generated,
            )
            added = await actions.create(work, new)
    except (InvalidValue, AlreadyExists, LimitReached) as error:
        return _form(context, recipe, submitted_values(context.form, fields), 400, _problems(error, fields))
    if added.secret is None:
        return context.to(_page(name), f"Source {name} added. Every gateway serves it within {_PROPAGATION_TIME}.")
    # Only in this response: no URL, cookie or cache contains the secret.
    return context.page(
        "sources/added.html",
        name=name,
        secret=added.secret,
        recipe=recipe,
        **_setup(context, recipe, f"/in/{name}", name),
    )


@routes.get("/sources/{name}/edit", Permission.SOURCE_MANAGE)
async def show_edit(context: ConsoleContext) -> Response:
    """Show the form of a stored source."""
    view, recipe, settings = await _editable(context)
    fields = [*recipe_fields(recipe), *common_fields(recipe)]
    return _form(context, recipe, shown_values(settings, fields), view=view)


@routes.post("/sources/{name}/edit", Permission.SOURCE_MANAGE)
async def change_source(context: ConsoleContext) -> Response:
    """Change a stored source; keys without a field stay."""
    view, recipe, _ = await _editable(context)
    fields = [*recipe_fields(recipe), *common_fields(recipe)]
    try:
        changes = read_settings(context.form, fields)
        async with context.work() as work:
            await actions.change(work, actions.SourceChange(source_name=view.name, settings=changes))
    except InvalidValue as error:
        values = submitted_values(context.form, fields)
        return _form(context, recipe, values, 400, _problems(error, fields), view=view)
    return context.to(
        _page(view.name), f"Source {view.name} changed. Every gateway follows within {_PROPAGATION_TIME}."
    )


@routes.post("/sources/{name}/delete", Permission.SOURCE_MANAGE)
async def remove_source(context: ConsoleContext) -> Response:
    """Remove a stored source."""
    name = context.path["name"]
    async with context.work() as work:
        await actions.delete(work, actions.SourceNamed(source_name=name))
    return context.to(f"{BASE}/sources", f"Source {name} removed. Its events, deliveries and rejections stay.")


async def _editable(context: ConsoleContext) -> tuple[SourceView, Recipe, Mapping[str, Any]]:
    """Return a stored source with its recipe and its settings. Raises InvalidState if these cannot be read."""
    name = context.path["name"]
    async with context.work() as work:
        view = await sources.get(work, name)
    settings = sources.read_stored_settings(context.app_context, name)
    recipe = sources.find_provider(str(settings.get("provider", "")))
    if recipe is None:
        text = f"the settings of {name} cannot be read: {view.trouble}; correct it on the command line, or remove it"
        raise InvalidState(text, "source_unreadable")
    return view, recipe, settings


def _form(
    context: ConsoleContext,
    recipe: Recipe,
    values: Mapping[str, str],
    status: int = 200,
    problems: Mapping[str, str] = MappingProxyType({}),
    view: SourceView | None = None,
) -> Response:
    name = values.get("name", "") or recipe.name if view is None else view.name
    common = common_fields(recipe)
    return context.page(
        "sources/form.html",
        status,
        recipe=recipe,
        view=view,
        values=values,
        problems=problems,
        choices_of=choices_of,
        own_fields=recipe_fields(recipe),
        common_fields=common,
        elsewhere=ELSEWHERE,
        is_common_wrong=any(field.name in problems for field in common),
        takes_secret=recipe.takes_secrets and not sources.takes_handshake_secret(recipe),
        is_key=sources.has_public_key(recipe),
        example=example_config_of(recipe),
        **_setup(context, recipe, f"/in/{name}", name),
    )


def _problems(error: Exception, fields: Sequence[Field]) -> Mapping[str, str]:
    match error:
        case InvalidValue():
            return problem_of(error, fields)
        case AlreadyExists():
            return {"name": str(error)}
        case _:
            return {"": str(error)}


def _setup(context: ConsoleContext, recipe: Recipe | None, path: str, source: str | None = None) -> dict[str, Any]:
    """Return the template values of the URL for the sender; without a configured one, that of this request."""
    base, requested = base_url_of(context.app_context.settings, source), context.request.url
    url = f"{base or f'{requested.scheme}://{requested.netloc}'}{path}"
    return {"url": url, "is_guessed": not base, "steps": [] if recipe is None else setup_steps_of(recipe, url)}


@routes.post("/sources/{name}/test", Permission.SOURCE_TEST)
async def test(context: ConsoleContext) -> Response:
    """Send a signed sample through the gateway, as the sender would, and show the result."""
    name = context.path["name"]
    async with context.work() as work:
        view = await sources.get(work, name)
    settings = context.app_context.settings
    added = await sources.read_added_secrets(context.app_context)
    trouble, steps = "", list[SourceTestStep]()
    try:
        # Collected one at a time, so that completed steps are shown after a failure.
        async for step in run_source_test(settings, name, at=_gateway_address(context), added=added):
            steps.append(step)
    except ConfigError as error:
        trouble = f"Invalid settings: {error}"
    except ConnectionError as error:
        trouble = f"The gateway did not respond: {error}"
    is_ok = not trouble and all(step.ok for step in steps)
    return context.page(
        "sources/tested.html", view=view, steps=steps, trouble=trouble, is_ok=is_ok, mark=TEST_USER_AGENT
    )


def _gateway_address(context: ConsoleContext) -> tuple[str, int] | None:
    """Return the address of this gateway, as the system may have chosen its port."""
    server = context.request.scope.get("server")
    return None if server is None or not server[1] else (server[0], server[1])


@routes.post("/sources/{name}/secrets", Permission.SOURCE_SECRET_MANAGE)
async def add_secret(context: ConsoleContext) -> Response:
    """Add a secret to a source."""
    name = context.path["name"]
    text = None if context.field("make") else context.field("secret")
    try:
        async with context.work() as work:
            new = secret_actions.NewSecret(
                source=name,
                secret=text,
                note=context.field("note"),
                expire_others=_seconds(context.field("others"), "others"),
            )
            created = await secret_actions.create(work, new)
    except InvalidValue as error:
        return await show_source(context, 400, error)
    if text is None:
        # Only in this response: no URL, cookie or cache contains the secret.
        return context.page("sources/created.html", name=name, made=created)
    return context.to(_page(name), f"Secret added. Every gateway accepts it within {_PROPAGATION_TIME}.")


@routes.post("/sources/{name}/secrets/{id}/expire", Permission.SOURCE_SECRET_MANAGE)
async def expire_secret(context: ConsoleContext) -> Response:
    """Set the expiry of an added secret."""
    name, id = context.path["name"], context.path["id"]
    async with context.work() as work:
        after = _seconds(str(context.form.get("after", "0")), "after") or 0
        expiring = await secret_actions.expire(work, secret_actions.SecretExpiry(source=name, secret=id, after=after))
    return context.to(_page(name), f"Secret {id} expires at {expiring.expires_at:%Y-%m-%d %H:%M:%S} UTC.")


@routes.post("/sources/{name}/secrets/{id}/keep", Permission.SOURCE_SECRET_MANAGE)
async def keep_secret(context: ConsoleContext) -> Response:
    """Cancel the expiry of an added secret."""
    name, id = context.path["name"], context.path["id"]
    async with context.work() as work:
        await secret_actions.keep(work, secret_actions.SecretNamed(source=name, secret=id))
    return context.to(_page(name), f"Secret {id} never expires.")


@routes.post("/sources/{name}/secrets/{id}/remove", Permission.SOURCE_SECRET_MANAGE)
async def remove_secret(context: ConsoleContext) -> Response:
    """Delete an added secret."""
    name, id = context.path["name"], context.path["id"]
    async with context.work() as work:
        await secret_actions.delete(work, secret_actions.SecretNamed(source=name, secret=id))
    return context.to(_page(name), f"Secret {id} removed. Every gateway stops accepting it within {_PROPAGATION_TIME}.")


@routes.post("/sources/{name}/handshake-secret", Permission.SOURCE_SECRET_MANAGE)
async def show_handshake_secret(context: ConsoleContext) -> Response:
    """Show the secret from the sender's handshake, only in this response, and activate it."""
    name = context.path["name"]
    async with context.work() as work:
        handshake = await secret_actions.show_handshake(work, secret_actions.SourceNamed(source=name))
    return context.page("sources/handshake_secret.html", name=name, secret=handshake.secret)


@routes.post("/sources/{name}/handshake-secret/delete", Permission.SOURCE_SECRET_MANAGE)
async def forget_handshake_secret(context: ConsoleContext) -> Response:
    """Delete the secret from the sender's handshake, so that the sender can send another."""
    name = context.path["name"]
    async with context.work() as work:
        await secret_actions.forget_handshake(work, secret_actions.SourceNamed(source=name))
    return context.to(_page(name), "Secret deleted. The next secret from the sender is stored.")


def _seconds(text: str, field: str) -> float | None:
    """Return the seconds of a number of hours; None for an empty text."""
    if not text.strip():
        return None
    try:
        return min(float(text) * 3_600, MAX_SOURCE_SECRET_GRACE.total_seconds() + 1)
    except ValueError:
        raise InvalidValue("enter a number of hours", field) from None


def _page(name: str) -> str:
    return f"{BASE}/sources/{name}"
