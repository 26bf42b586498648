"""The settings in force, to be read; secrets are shown by where they are kept alone."""

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from boathook.config import defaults
from boathook.console.routes import ConsoleContext, Routes
from boathook.service.authorization import Permission
from boathook.service.shown_settings import all_settings

routes = Routes()


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One key of a table."""

    key: str
    value: str
    is_set: bool
    """Whether it is not what it would be by itself."""


@routes.get("/settings", Permission.SETTINGS_VIEW)
async def show_settings(context: ConsoleContext) -> Response:
    """Show every table with its keys."""
    settings = context.app_context.settings
    shown, usual = all_settings(settings), defaults()
    sources = shown.pop("sources")
    tables = {name: _lines(table, usual.get(name, {})) for name, table in shown.items()}
    tables |= {f"sources.{name}": _lines(table, {}) for name, table in sorted(sources.items())}
    return context.page("settings/show.html", tables=tables, file=settings.file, others=sorted(settings.extra))


def _lines(table: dict[str, Any], usual: dict[str, Any]) -> list[SettingRow]:
    """Return the keys that have a value."""
    return [
        SettingRow(key, _format_value(value), value != usual.get(key))
        for key, value in table.items()
        if value is not None
    ]


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
