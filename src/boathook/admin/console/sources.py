"""Sources: what comes in where, how its sender is set up, whether it works, and the secrets that prove it."""

from datetime import timedelta
from typing import Final

from starlette.responses import Response

from boathook.admin import source_secrets as actions
from boathook.admin import told_secrets
from boathook.admin.authorization import Permission
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.admin.source_secrets import LONGEST_GRACE
from boathook.admin.sources import SourceView, Traffic, base_of, example_of, steps_of, traffic, view_of
from boathook.admin.trial import MARK, Step, try_source
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.inbound.added import AddedSecrets
from boathook.inbound.gates import is_told
from boathook.inbound.providers import RECIPES, find
from boathook.inbound.providers.proofs import Asymmetric
from boathook.journal import source_secrets, source_sights
from boathook.journal.moves import Action

routes = Routes()
_GRACES: Final = (
    ("", "go on"),
    ("1", "end in an hour"),
    ("24", "end in a day"),
    ("168", "end in a week"),
    ("0", "end at once"),
)
_SOON: Final = "five seconds"


@routes.get("/sources", Permission.SOURCE_VIEW)
async def list_sources(visit: Visit) -> Response:
    """Show every source with what came in lately."""
    settings = visit.desk.settings
    async with visit.work() as work:
        added = await _added(visit)
        events = await source_sights.latest_events(work.connection)
        refusals = await source_sights.refusals(work.connection, list(settings.sources))
    views = [view_of(settings, name, added) for name in sorted(settings.sources)]
    return visit.page(
        "sources/list.html",
        views=views,
        traffic=traffic(visit.state.history),
        nothing=Traffic(),
        events=events,
        refusals=refusals,
        looked_at=source_sights.LOOKED_AT,
    )


@routes.get("/sources-senders", Permission.SOURCE_VIEW)
async def list_providers(visit: Visit) -> Response:
    """Show the senders that boathook knows."""
    return visit.page("sources/providers.html", recipes=RECIPES)


@routes.get("/sources-senders/{provider}", Permission.SOURCE_VIEW)
async def show_provider(visit: Visit) -> Response:
    """Show how a source of one provider would be set up."""
    recipe = find(visit.path["provider"])
    base = base_of(visit.desk.settings)
    url = f"{base or _here(visit)}/in/{recipe.name}"
    return visit.page(
        "sources/provider.html",
        recipe=recipe,
        example=example_of(recipe),
        url=url,
        is_guessed=not base,
        steps=steps_of(recipe, url),
    )


@routes.get("/sources/{name}", Permission.SOURCE_VIEW)
async def show_source(visit: Visit) -> Response:
    """Show one source."""
    return await _show(visit)


async def _show(visit: Visit, status: int = 200, error: InvalidValue | None = None) -> Response:
    settings, name = visit.desk.settings, visit.path["name"]
    added = await _added(visit)
    view = view_of(settings, name, added)
    async with visit.work() as work:
        lines = await actions.list_lines(work, name)
        events = await source_sights.latest_events(work.connection)
        refusals = await source_sights.refusals(work.connection, [name])
    base = base_of(settings, name)
    url = f"{base or _here(visit)}{view.paths[0]}"
    return visit.page(
        "sources/show.html",
        status,
        view=view,
        url=url,
        is_guessed=not base,
        steps=[] if view.recipe is None else steps_of(view.recipe, url),
        lines=lines,
        graces=_GRACES,
        is_told=is_told(settings.sources[name]),
        takes_secrets=_takes_secrets(view),
        is_key=view.recipe is not None and isinstance(view.recipe.proof, Asymmetric),
        traffic=traffic(visit.state.history).get(name, Traffic()),
        event=events.get(name),
        refusals=refusals[name],
        looked_at=source_sights.LOOKED_AT,
        mark=MARK,
        error=error,
    )


def _takes_secrets(view: SourceView) -> bool:
    return not view.is_unsigned and view.recipe is not None and view.recipe.takes_secrets


def _here(visit: Visit) -> str:
    return f"{visit.request.url.scheme}://{visit.request.url.netloc}"


async def _added(visit: Visit) -> AddedSecrets:
    return AddedSecrets(visit.desk.settings, await source_secrets.list_all(visit.desk.database))


@routes.post("/sources/{name}/test", Permission.SOURCE_TEST)
async def test(visit: Visit) -> Response:
    """Send a sample through the gateway, as the sender would, and tell what became of it."""
    settings, name = visit.desk.settings, visit.path["name"]
    added = await _added(visit)
    view = view_of(settings, name, added)
    trouble, steps = "", list[Step]()
    try:
        # One by one, so that those before a fault are shown.
        async for step in try_source(settings, name, at=_gateway(visit), added=added):
            steps.append(step)
    except ConfigError as error:
        trouble = f"Its settings are wrong: {error}"
    except ConnectionError as error:
        trouble = f"The gateway did not answer: {error}"
    is_ok = not trouble and all(step.ok for step in steps)
    return visit.page("sources/tested.html", view=view, steps=steps, trouble=trouble, is_ok=is_ok, mark=MARK)


def _gateway(visit: Visit) -> tuple[str, int] | None:
    """Return where this very gateway was reached, as it may listen on a port that the system has chosen."""
    server = visit.request.scope.get("server")
    return None if server is None or not server[1] else (server[0], server[1])


@routes.post("/sources/{name}/secrets", Permission.SOURCE_SECRET_MANAGE)
async def add_secret(visit: Visit) -> Response:
    """Let another secret prove a source's requests."""
    name, form = visit.path["name"], visit.form
    text = None if form.get("make") else str(form.get("secret", ""))
    try:
        async with visit.work() as work:
            made = await actions.add(
                work,
                name,
                text,
                note_text=str(form.get("note", "")),
                others_end_after=_hours(str(form.get("others", "")), "others"),
            )
    except InvalidValue as error:
        return await _show(visit, 400, error)
    if text is None:
        # In this answer alone: no address, no cookie and no cache ever holds it.
        return visit.page("sources/made.html", name=name, made=made)
    return visit.to(_page(name), f"The secret is added; every gateway accepts it within {_SOON}.")


@routes.post("/sources/{name}/secrets/{id}/end", Permission.SOURCE_SECRET_MANAGE)
async def end_secret(visit: Visit) -> Response:
    """Let an added secret end."""
    name, id = visit.path["name"], visit.path["id"]
    async with visit.work() as work:
        ended = await actions.end(work, name, id, _hours(str(visit.form.get("after", "0")), "after") or timedelta())
    return visit.to(_page(name), f"The secret {id} ends at {ended.ends_at:%Y-%m-%d %H:%M:%S} UTC.")


@routes.post("/sources/{name}/secrets/{id}/keep", Permission.SOURCE_SECRET_MANAGE)
async def keep_secret(visit: Visit) -> Response:
    """Take back that an added secret ends."""
    name, id = visit.path["name"], visit.path["id"]
    async with visit.work() as work:
        await actions.end(work, name, id, None)
    return visit.to(_page(name), f"The secret {id} has no end.")


@routes.post("/sources/{name}/secrets/{id}/remove", Permission.SOURCE_SECRET_MANAGE)
async def remove_secret(visit: Visit) -> Response:
    """Delete an added secret."""
    name, id = visit.path["name"], visit.path["id"]
    async with visit.work() as work:
        await actions.remove(work, name, id)
    return visit.to(_page(name), f"The secret {id} is removed; it proves nothing any more within {_SOON}.")


@routes.post("/sources/{name}/told", Permission.SOURCE_SECRET_MANAGE)
async def show_told(visit: Visit) -> Response:
    """Show the secret that a sender has told, in this answer alone; from now on it counts."""
    name = visit.path["name"]
    secret = await told_secrets.show_secret(visit.desk.database, visit.desk.settings, name, Action(actor=visit.actor))
    return visit.page("sources/told.html", name=name, secret=secret)


@routes.post("/sources/{name}/told/forget", Permission.SOURCE_SECRET_MANAGE)
async def forget_told(visit: Visit) -> Response:
    """Forget the secret that a sender has told, so that it can tell another."""
    name = visit.path["name"]
    await told_secrets.forget_secret(visit.desk.database, visit.desk.settings, name, Action(actor=visit.actor))
    return visit.to(_page(name), "Forgotten: the next secret that the sender tells is kept.")


def _hours(text: str, field: str) -> timedelta | None:
    if not text.strip():
        return None
    try:
        return min(timedelta(hours=float(text)), LONGEST_GRACE + timedelta(hours=1))
    except (ValueError, OverflowError):
        raise InvalidValue("write a number of hours", field) from None


def _page(name: str) -> str:
    return f"{BASE}/sources/{name}"
