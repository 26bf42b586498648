"""The database of a Django project, as boathook connects to it."""

from typing import Any, Final
from urllib.parse import quote, urlencode

from django.db import connections

ALIAS: Final = "default"
_OPTIONS: Final = ("passfile", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs")
"""Keys of OPTIONS that have the same meaning in a URL; the others are for psycopg or Django."""


def is_postgresql() -> bool:
    """Return whether the project's database is PostgreSQL."""
    return bool(connections[ALIAS].vendor == "postgresql")


def database_url() -> str:
    """Return the URL of the project's database, which is that of the tests while they run."""
    given: dict[str, Any] = connections[ALIAS].settings_dict
    user, password = (quote(str(given.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host, port = str(given.get("HOST") or ""), str(given.get("PORT") or "")
    query = {key: str(value) for key, value in (given.get("OPTIONS") or {}).items() if key in _OPTIONS}
    if host.startswith("/"):  # the folder of a Unix socket
        query["host"], host = host, ""
        query |= {"port": port} if port else {}
    elif port:
        host = f"{host or 'localhost'}:{port}"
    tail = f"?{urlencode(query, safe='/')}" if query else ""
    return f"postgresql://{login}{host}/{quote(str(given.get('NAME') or ''), safe='')}{tail}"
