"""The page of the effective settings."""

from starlette.responses import Response

from boathook.console.routes import ConsoleContext, Routes
from boathook.pages import query_params
from boathook.service.authorization import Permission
from boathook.service.shown_settings import find_settings

routes = Routes()


@routes.get("/settings", Permission.SETTINGS_VIEW)
async def show_settings(context: ConsoleContext) -> Response:
    """Show the settings that match a search, by default only the changed ones."""
    settings = context.app_context.settings
    words = query_params.get_text(context.query, "q") or ""
    is_all = context.query.get("show") == "all"
    rows = find_settings(settings, words, is_changed_only=not is_all)
    others = 0 if is_all else len(find_settings(settings, words, is_changed_only=False)) - len(rows)
    return context.page(
        "settings/show.html",
        rows=rows,
        words=words,
        is_all=is_all,
        others=others,
        all_url=query_params.build_url("/console/settings", {"q": words}, show="all"),
        changed_url=query_params.build_url("/console/settings", {"q": words}),
        file=settings.file,
        app_sections=sorted(settings.extra),
    )
