"""Writes docs/reference/svix-clients.md from the scenario that the official Svix clients are tested with."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.acceptance.svix.scenario import CLIENT_FAULTS, LEFT_OUT, METHODS, NO_ROUTE, NOT_OPEN, Method

ROOT: Final = Path(__file__).parents[1]
CLIENTS: Final = ROOT / "tests/acceptance/svix/clients"

HEAD: Final = """\
# Svix's clients

{generated}

The official clients of five languages call every method that they have on a running boathook, in
[one scenario](../../tests/acceptance/svix/scenario.py), and each answer is compared with what the client read:
Python {python}, npm {npm}, Go {go}, Java {java} and Rust {rust}. They are used unchanged. Older Python clients are
tested in a scenario of their own. Both run in `make test-all`; where a language is not installed, its client is
skipped.

Names of methods are those of the newest clients; older ones say `update` for `upsert`, and `update_headers` for
`set_headers`. Paths are below `/api/v1`, except those of `/ingest`. The reference is
[Svix's API](https://api.svix.com/docs): the *cloud* is the hosted service, the *open server* the one whose source is
published.

## What differs from the reference

Methods that are not in this table answer as in the reference; what differs in all of them is described in
[the API](api.md#what-differs-on-purpose).

| method | request | answers | Svix | why |
|---|---|---|---|---|
"""

CLOUD: Final = """
## What the open server does not have

Svix's cloud has these, and boathook answers as the cloud does.

| method | request | answers |
|---|---|---|
"""

SAME: Final = """
## What is the same in all three

| method | request | answers |
|---|---|---|
"""

ABSENT: Final = """
## What is left out

These answer 404 `{code}`, "{detail}". It is not 501, as clients repeat every request that is answered with 500 or more.

| area | methods | why |
|---|---|---|
"""

FAULTS: Final = """
## What clients cannot do

These calls fail in the client, before it sends anything, whatever server it is used with:

| client | method | what happens |
|---|---|---|
"""


def page(generated: str) -> str:
    """Return the page."""
    parts = [HEAD.format(generated=generated, **versions())]
    served = [one for one in METHODS.values() if one.is_served]
    parts += [f"{_cells(one)} {one.reference} | {one.why} |\n" for one in served if one.why]
    parts.append(CLOUD)
    parts += [f"{_cells(one)}\n" for one in served if one.reference == NOT_OPEN]
    parts.append(SAME)
    parts += [f"{_cells(one)}\n" for one in served if not one.reference]
    parts.append(ABSENT.format(**NO_ROUTE))
    parts += [f"| {area} | {_names(text)} | {why} |\n" for area, (text, why) in LEFT_OUT.items()]
    parts.append(FAULTS)
    parts += _faults()
    return "".join(parts)


def versions() -> dict[str, str]:
    """Return the version of each client, from its lock file."""
    npm = json.loads((CLIENTS / "npm/package-lock.json").read_text())["packages"]["node_modules/svix"]["version"]
    crates = tomllib.loads((CLIENTS / "rust/Cargo.lock").read_text())["package"]
    return {
        "python": _found(ROOT / "requirements/dev.lock", r"^svix==(\S+)"),
        "npm": npm,
        "go": _found(CLIENTS / "go/go.mod", r"svix-webhooks v(\S+)"),
        "java": _found(CLIENTS / "java/jars.sha256", r" svix-(\S+)\.jar"),
        "rust": next(crate["version"] for crate in crates if crate["name"] == "svix"),
    }


def _found(file: Path, pattern: str) -> str:
    match = re.search(pattern, file.read_text(), re.MULTILINE)
    if match is None:
        raise LookupError(f"{file} names no version of the client")
    return match[1]


def _cells(one: Method) -> str:
    return f"| `{one.name}` | `{one.request}` | {' or '.join(map(str, one.status))} |"


def _names(text: str) -> str:
    return ", ".join(f"`{line.split()[0]}`" for line in text.strip().splitlines())


def _faults() -> Iterator[str]:
    for client, faults in CLIENT_FAULTS.items():
        for name, what in faults.items():
            yield f"| {client} | `{name}` | {what} |\n"
