"""Runs `boathook NAME import`, and kills it in the middle of a batch."""

import json
import signal
from pathlib import Path
from typing import Any

import psycopg

from tests.apps.app_server import AppServer
from tests.commands import boathook_running
from tests.support import until

_BLOCK = 731
"""The advisory lock at which a blocked import waits."""


def create_tables(server: AppServer, file: Path, schema: str = "public", **names: str) -> None:
    """Create the owner's tables from a file of DDL."""
    sql = file.read_text(encoding="utf-8").replace("{schema}", schema)
    for name, value in names.items():
        sql = sql.replace(f"{{{name}}}", value)
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        connection.execute(f"create schema if not exists {schema}")
        connection.execute(sql)


def run_import(server: AppServer, *options: str, code: int = 0) -> dict[str, Any]:
    """Import and return the counts by table; ``rejected`` and ``note`` hold the other lines."""
    done = server.cli(server.app, "import", "--json", *options, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    counts = {line["table"]: line for line in lines if line["kind"] == "counts"}
    return {
        **{table: {name: n for name, n in line.items() if n and isinstance(n, int) and name != "dry_run"}
           for table, line in counts.items()},
        "rejected": {(line["table"], line["key"]): (line["column"], line["problem"]) for line in lines if line["kind"] == "rejected"},
        "notes": [line["text"] for line in lines if line["kind"] == "note"],
        "ignored": [(line["table"], line["column"]) for line in lines if line["kind"] == "ignored_column"],
    }  # fmt: skip


def kill_in_batch(server: AppServer, *options: str, after: int) -> None:
    """Start an import and SIGKILL it while a row after the first *after* ones is written, before its batch commits."""
    ledger = f"{server.app}.imported_row"
    server.rows(f"""
        create function public.block_import() returns trigger language plpgsql as $$
        begin
            if (select count(*) from {ledger}) >= {after} then perform pg_advisory_xact_lock({_BLOCK}); end if;
            return new;
        end $$
    """)
    server.rows(
        f"create trigger block_import before insert on {ledger} for each row execute function public.block_import()"
    )
    waiting = "select pid from pg_locks where locktype = 'advisory' and objid = %s and not granted"
    with psycopg.connect(server.database_url) as blocker, (server.folder / "import.log").open("ab") as log:
        blocker.execute("select pg_advisory_xact_lock(%s)", [_BLOCK])
        process = boathook_running(
            server.app, "import", *options, cwd=server.folder, env=server.environment, output=log
        )
        [row] = until(lambda: server.rows(waiting, _BLOCK), timeout=60)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        server.rows("select pg_terminate_backend(%s)", row["pid"])
        until(lambda: not server.rows("select from pg_stat_activity where pid = %s", row["pid"]), timeout=60)
    server.rows(f"drop trigger block_import on {ledger}")
    server.rows("drop function public.block_import()")


def fingerprint(server: AppServer, *tables: str) -> list[Any]:
    """Return all rows of these tables, as text."""
    return [server.rows(f"select t::text as row from {table} t order by t::text") for table in tables]
