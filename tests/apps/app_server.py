"""A boathook that loads one app, as a subprocess on a database of its own: what the tests of all apps stand on."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg
from psycopg.rows import dict_row

from tests.acceptance.conftest import BoathookProcess
from tests.databases import created


class AppStand(BoathookProcess):
    """One `boathook serve` with one app and no handlers of the owner's.

    Args:
        folder: Where it runs.
        database_url: A migrated database.
        table: The end of its boathook.toml, in pieces; it begins with the app's own table.
        allow: A network that the app may call.
        roles: What it does.
        senders: How many processes send to endpoints.
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
            load = ["boathook.apps.{self.app}"]
            [outbound]
            allow = [{f'"{allow}"' if allow else ""}]
        """
        extra = "".join(map(textwrap.dedent, (loading, *table)))
        super().__init__(folder, database_url, roles=roles, extra=extra, senders=senders)

    @classmethod
    @contextmanager
    def lent(cls, folder: Path, admin_url: str, template: str, **settings: Any) -> Iterator[Self]:
        """Lend one that is not started, on a database of its own; what still runs of it in the end is killed."""
        with created(admin_url, template) as url:
            stand = cls(folder, url, **settings)
            try:
                yield stand
            finally:
                stand.kill_all()

    @classmethod
    @contextmanager
    def served(
        cls, folder: Path, admin_url: str, template: str, *, environment: dict[str, str] | None = None, **settings: Any
    ) -> Iterator[Self]:
        """Lend a running one on a database of its own."""
        with cls.lent(folder, admin_url, template, **settings) as stand:
            yield stand.start(**environment or {})

    def rows(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        """Run one statement and return its rows, if it has any."""
        with psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(sql, arguments or None)
            # A select of no columns has rows, but no description.
            has_rows = cursor.pgresult is not None and cursor.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK
            return cursor.fetchall() if has_rows else []
