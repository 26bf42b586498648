"""The command line, the API, the console and apps refuse the same value of a stored object with the same words."""

import asyncio
import html
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from boathook.config.stored_sources import stored_values
from boathook.db.database import Database
from boathook.domain.errors import InvalidValue
from boathook.domain.model import Role
from boathook.service.fields import Input
from boathook.service.sending import applications, endpoints
from boathook.service.sending.endpoints import NewEndpoint
from tests.acceptance.test_cli import Cli
from tests.postgres.api_client import open_api_client
from tests.postgres.portal_client import open_console

URL: Final = "https://example.com/h"


class Case(Input, frozen=True, kw_only=True):
    """A wrong value at each interface; None where an interface does not take it."""

    command: tuple[str, ...]
    complaint: str
    """What the command line says; the others say the same without the name of the option."""
    path: str = ""
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    loc: tuple[str, ...] = ()
    """Where the API finds it; by default the last field of the body."""
    page: str = ""
    form: dict[str, str] = msgspec.field(default_factory=dict)


def of_endpoint(option: str, name: str, value: Any, text: str) -> Case:
    return Case(
        command=("endpoints", "create", "-a", "acme", "--url", URL, option, str(value)),
        complaint=f"{option}: {text}",
        path="/app/acme/endpoint",
        body={"url": URL, name: value},
        page="/console/applications/acme/endpoints",
        form={"url": URL, name: str(value)},
    )


def of_source(key: str, value: Any, text: str, *, provider: str = "github") -> Case:
    """Return the case of a wrong value of a key, which an option, the API and the form have under its name."""
    option = f"--{key.replace('_', '-')}"
    return Case(
        command=("sources", "add", "store", "--provider", provider, "--generate-secret", f"{option}={value}"),
        complaint=f"{option}: {text}",
        path="/source",
        body={"name": "store", "provider": provider, "generateSecret": True, "settings": {key: value}},
        loc=("settings", key),
        page=f"/console/sources-new/{provider}",
        form={"name": "store", "generate": "yes", key: str(value)},
    )


CASES: Final = {
    "rate of a source": of_source("rate", -1, "must be at least 0 (it is -1)"),
    "text as the rate of a source": of_source("rate", "many", "must be a number (it is 'many')"),
    "largest body": of_source("max_body", 0, "must be at least 1 (it is 0)"),
    "burst": of_source("burst", 0.5, "must be a whole number (it is 0.5)"),
    "dedup memory": of_source("dedup_days", 40_000, "must be at most 36500 (it is 40000)"),
    "replies": of_source("mode", "later", "must be 'store' or 'inline' (it is 'later')"),
    "fallback status": of_source("fallback_status", 302, "the status 302 is a redirect; use another, such as 200"),
    "reference": of_source(
        "public_url",
        "env:HOME",
        "a reference such as env:NAME or file:PATH belongs in boathook.toml; write the value itself",
    ),
    "concurrency": of_endpoint("--concurrency", "concurrency", 5_000, "write a number from 1 to 1,000"),
    "timeout": of_endpoint("--timeout", "timeoutSeconds", 3_000, "write a number from 1 to 60"),
    "rate": of_endpoint("--rate", "throttleRate", 65_536, "write a number from 1 to 65,535"),
    "description": of_endpoint("--description", "description", "x" * 4_097, "write 4,096 characters at most"),
    "uid": of_endpoint("--uid", "uid", "a b", "write 1 to 256 letters, digits, - _ and ."),
    "event type": Case(
        command=("event-types", "create", "invoice.paid", "--description", "d" * 4_097),
        complaint="--description: write 4,096 characters at most",
        path="/event-type",
        body={"name": "invoice.paid", "description": "d" * 4_097},
        page="/console/event-types-new",
        form={"name": "invoice.paid", "description": "d" * 4_097},
    ),
    "name of a key": Case(
        command=("keys", "create", "--scope", "organization", "--name", "n" * 100_000),
        complaint="--name: write 200 characters at most",
        page="/console/keys",
        form={"name": "n" * 100_000, "scope": "organization", "lifetime": ""},
    ),
    "empty name of a key": Case(
        command=("keys", "create", "--scope", "organization", "--name", " "),
        complaint="--name: write 1 to 200 characters",
        page="/console/keys",
        form={"name": " ", "scope": "organization", "lifetime": ""},
    ),
}


@pytest.fixture
async def cli(tmp_path: Path, pg_url: str) -> Cli:
    made = Cli(tmp_path, pg_url)
    await asyncio.to_thread(made.run, "applications", "create", "Acme", "--uid", "acme")
    return made


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_interfaces_refuse_the_same_value_with_the_same_words(cli: Cli, db: Database, case: Case):
    complaint = await asyncio.to_thread(cli.complaint, *case.command)
    assert complaint.startswith(f"boathook: {case.complaint}")
    text = case.complaint.partition(": ")[2]
    if case.path:
        async with open_api_client(db) as api:
            [problem] = (await api.ask(422, "POST", case.path, case.body))["detail"]
        assert problem["msg"] == text
        assert problem["loc"] == ["body", *(case.loc or (next(reversed(case.body)),))]
    async with open_console(db) as console:
        anna = await console.operator("anna", Role.ADMIN)
        on = f"{case.page}/new" if case.page.endswith("/endpoints") else ""
        answer = await anna.submit_form(case.page, case.form, on=on, status=400)
    assert f"<strong>{text}</strong>" in html.unescape(answer.text)


async def test_all_wrong_values_are_named_at_once(cli: Cli, db: Database):
    body = {"url": URL, "concurrency": 5_000, "timeoutSeconds": 3_000}
    async with open_api_client(db) as api:
        problems = (await api.ask(422, "POST", "/app/acme/endpoint", body))["detail"]
        assert [problem["loc"][1] for problem in problems] == ["concurrency", "timeoutSeconds"]
        async with api.context.work(actor="app:shop") as work:
            acme = await applications.get(work, "acme")
            new = NewEndpoint(url=URL, concurrency=5_000, timeout_s=3_000)
            with pytest.raises(InvalidValue) as caught:  # as an app does by hook.operations.put_endpoint
                await endpoints.put(work, acme, "crm", new)
    assert [each.where for each in (caught.value, *caught.value.others)] == [("concurrency",), ("timeoutSeconds",)]


GOOD: Final[dict[str, Any]] = {
    "paths": ["/hooks/a", "/hooks/b"],
    "rate": 5,
    "max_body": 2_000,
    "tolerance_s": 1.5,
    "methods": ["POST", "PUT"],
    "keep_request_id": True,
    "mode": "inline",
    "fallback_status": 202,
    "fallback_body": "later",
    "schema": {"type": "object"},
}


def options_of(settings: dict[str, Any]) -> list[str]:
    """Return the options of the command line that set keys of a source."""
    words = []
    for key, value in settings.items():
        option = f"--{key.replace('_', '-')}"
        if value is True:
            words.append(option)
        else:
            texts = value if isinstance(value, list) else [value]
            words += [f"{option}={json.dumps(text) if isinstance(text, dict) else text}" for text in texts]
    return words


def form_of(settings: dict[str, Any]) -> dict[str, str]:
    """Return the form that sets keys of a source."""
    return {
        key: " ".join(value)
        if isinstance(value, list)
        else json.dumps(value)
        if isinstance(value, dict)
        else str(value)
        for key, value in settings.items()
    }


async def test_interfaces_store_the_same_source(tmp_path: Path, pg_url: str, db: Database):
    made = Cli(tmp_path, pg_url)
    settings = {name: {**GOOD, "paths": [f"/{name}/a", f"/{name}/b"]} for name in ("cli", "api", "form")}
    add = ("sources", "add", "cli", "--provider", "github", "--generate-secret", *options_of(settings["cli"]))
    await asyncio.to_thread(made.run, *add)
    [shown] = await asyncio.to_thread(made.objects, "sources", "show", "cli")
    async with open_api_client(db) as api:
        body = {"name": "api", "provider": "github", "generateSecret": True, "settings": settings["api"]}
        stored = (await api.ask(201, "POST", "/source", body))["settings"]
        assert {key: stored[key] for key in GOOD} == settings["api"]
    async with open_console(db) as console:
        anna = await console.operator("anna", Role.ADMIN)
        form = {"name": "form", "generate": "yes", **form_of(settings["form"])}
        await anna.submit_form("/console/sources-new/github", form, status=200)
        source = (await console.context.refresh_settings()).sources["form"]
        assert {key: stored_values(source)[key] for key in GOOD} == settings["form"]
        page = await anna.get_page("/console/sources/form/edit")
        assert 'value="/form/a /form/b"' in page, "the form shows what it stored"
    assert {key: shown[key] for key in GOOD if key != "paths"} == {
        key: value for key, value in GOOD.items() if key != "paths"
    }
