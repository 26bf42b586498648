"""Runs a boathook process that loads one app, on its own database; base of the servers of all app tests."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg
from psycopg.rows import dict_row

from tests.acceptance.conftest import BoathookProcess
from tests.databases import created


class AppServer(BoathookProcess):
    """A `boathook serve` process with one app and no other handlers.

    Args:
        folder: The working directory.
        database_url: A migrated database.
        table: The end of boathook.toml, in parts; it begins with the app's own table.
        allow: A network to which the app may send requests.
        roles: The roles of the process.
        senders: The number of sender processes.
    """

    own = ""
    app: ClassVar[str]

    def __init__(
        self,
        folder: Path,
        database_url: str,
        *table: str,
        allow: str = "127.0.0.0/8",
        roles: str = "gateway,worker,keeper,console",
        senders: int = 0,
    ) -> None:
        loading = f"""
            [apps]
            load = ["{self.app}"]
            [outbound]
            allow = [{f'"{allow}"' if allow else ""}]
        """
        extra = "".join(map(textwrap.dedent, (loading, *table)))
        super().__init__(folder, database_url, roles=roles, extra=extra, senders=senders)

    @classmethod
    @contextmanager
    def prepared(cls, folder: Path, admin_url: str, template: str, **settings: Any) -> Iterator[Self]:
        """Yield a server that is not started, on a new database; processes that still run at the end are killed."""
        with created(admin_url, template) as url:
            server = cls(folder, url, **settings)
            try:
                yield server
            finally:
                server.kill_all()

    @classmethod
    @contextmanager
    def started(
        cls, folder: Path, admin_url: str, template: str, *, environment: dict[str, str] | None = None, **settings: Any
    ) -> Iterator[Self]:
        """Yield a started server on a new database."""
        with cls.prepared(folder, admin_url, template, **settings) as server:
            yield server.start(**environment or {})

    def rows(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        """Run one SQL statement and return its rows, if any."""
        with psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(sql, arguments or None)
            # A select of no columns has rows, but no description.
            has_rows = cursor.pgresult is not None and cursor.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK
            return cursor.fetchall() if has_rows else []
