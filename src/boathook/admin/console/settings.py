"""The settings in force, to be read; secrets are shown by where they are kept alone."""

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from boathook.admin.authorization import Permission
from boathook.admin.console.pages import Routes, Visit
from boathook.admin.shown_settings import all_settings
from boathook.config import defaults

routes = Routes()


@dataclass(frozen=True, slots=True)
class SettingLine:
    """One key of a table."""

    key: str
    value: str
    is_set: bool
    """Whether it is not what it would be by itself."""


@routes.get("/settings", Permission.SETTINGS_VIEW)
async def show_settings(visit: Visit) -> Response:
    """Show every table with its keys."""
    settings = visit.desk.settings
    shown, usual = all_settings(settings), defaults()
    sources = shown.pop("sources")
    tables = {name: _lines(table, usual.get(name, {})) for name, table in shown.items()}
    tables |= {f"sources.{name}": _lines(table, {}) for name, table in sorted(sources.items())}
    return visit.page("settings/show.html", tables=tables, file=settings.file, others=sorted(settings.extra))


def _lines(table: dict[str, Any], usual: dict[str, Any]) -> list[SettingLine]:
    """Return the keys that have a value."""
    return [
        SettingLine(key, _written(value), value != usual.get(key)) for key, value in table.items() if value is not None
    ]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
