"""Imports from a fake Svix server: edge cases, repeats, rejections, changing pages, deletions, dry runs."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from boathook.api.endpoints import show_endpoint
from boathook.cli.output import plain
from boathook.config import load
from boathook.db import applications as stored_applications
from boathook.db import endpoints as stored_endpoints
from boathook.db.applications import PageRequest
from boathook.db.database import Database
from boathook.db.route_registry import register
from boathook.domain import ids
from boathook.domain.errors import ConfigError, DatabaseError, FetchFailed, InvalidValue
from boathook.domain.model import Route
from boathook.handlers.api import Boathook
from boathook.server.loading import bind
from boathook.service.caller import HOST
from boathook.service.catalogue import event_types
from boathook.service.catalogue.event_types import EventTypeNamed
from boathook.service.sending import applications, endpoint_secrets, endpoints
from boathook.service.unit_of_work import AppContext, UnitOfWork
from boathook_cells import store
from boathook_svix_import.endpoints import Options
from boathook_svix_import.importer import SvixImporter
from boathook_svix_import.reader import SvixClient
from boathook_svix_import.report import Outcome, Report
from tests.postgres.api_client import ApiClient, make_context, make_token
from tests.support import sampled
from tests.svix_server import NOT_FOUND, TOKEN, Answer, SvixServer, make_private_key, make_secret, public_half, serve

svix = pytest.fixture(serve)
LIMIT = {"note": "x" * (4_096 - len('{"note":""}'))}
"""Metadata of exactly as many bytes as there may be."""


@dataclass(slots=True)
class Side:
    """A boathook that imports."""

    context: AppContext
    svix: SvixServer
    waited: list[float]

    async def run(self, token: str = TOKEN, **options: Any) -> Report:
        async def wait(seconds: float) -> None:
            self.waited.append(seconds)

        reader = SvixClient(self.context.settings, self.svix.url, token, sleep=wait)
        try:
            return await SvixImporter(self.context, reader, replace(Options(actor="test"), **options)).run()
        finally:
            reader.close()

    async def endpoint(self, app: str, reference: str) -> dict[str, Any]:
        async with self.context.work() as work:
            found = await endpoints.get(work, await applications.get(work, app), reference)
            return show_endpoint(work, found).model_dump(by_alias=True)

    async def secret(self, app: str, reference: str) -> str:
        async with self.context.work() as work:
            return await endpoint_secrets.get_secret(work, await applications.get(work, app), reference)

    async def headers(self, app: str, reference: str) -> dict[str, str]:
        async with self.context.work() as work:
            return endpoints.decrypt_headers(
                work, await endpoints.get(work, await applications.get(work, app), reference)
            )

    async def rows(self) -> list[Any]:
        """Return everything that an import may write, to compare."""
        tables = ("application", "endpoint", "endpoint_secret", "event_type", "audit", "event")
        return [[dict(row) for row in await self.context.database.fetch(f"table boathook.{name}")] for name in tables]


@pytest.fixture
def side(db: Database, svix: SvixServer) -> Side:
    return Side(make_context(db, outbound__ports=[443]), svix, [])


def reasons(report: Report) -> dict[str, str]:
    return {f"{one.object}, {one.field}": one.reason for one in report.not_moved}


def failures(report: Report) -> dict[str, str]:
    return {f"{one.object}, {one.field}".removesuffix(", "): one.reason for one in report.failed}


def changes(report: Report) -> dict[str, Any]:
    return {one.object: list(one.fields) or str(one.outcome) for one in report.changes}


@dataclass(frozen=True, slots=True)
class Hostile:
    """The ids of a hostile set-up."""

    cafe: str
    plain: str
    ed25519: str
    bare: str
    odd: str
    coded: str


def fill(svix: SvixServer) -> Hostile:
    """Set up cases that have lost data or stopped an import in the past."""
    svix.page = 2
    svix.add_type(
        "invoice.paid", schemas={"1": {"type": "object"}}, groupName="invoices", featureFlags=["c", "beta", "a"]
    )
    svix.add_type("invoice.old", archived=True, schemas={"1": {"type": "object", "required": ["id"]}})
    svix.add_type("invoice.late", deprecated=True, featureFlag="late")
    svix.add_type("invoice.odd", schemas={"7": {"type": "no such type"}})
    acme = svix.add_app("Acme", "acme", throttleRate=50, metadata=LIMIT)
    cafe = svix.add_app("Café", "кафе", rateLimit=70_000, metadata={"note": "é" * 3_000}, region="eu")
    plain = svix.add_endpoint(
        acme, "https://Shop.Example.COM/hook", uid="crm", description="Ordnung muß sein", throttleRate=7,
        filterTypes=["invoice.paid", "invoice.old", "invoice.unknown"], channels=["eu", "us:1", "b+c"], metadata=LIMIT,
    )  # fmt: skip
    svix.headers[plain] = {"X-Team": "b", "Authorization": "Bearer hidden", "X-Forwarded-For": "10.0.0.1"}
    ed25519 = svix.add_endpoint(acme, "https://a.example.com/", make_private_key(1), uid="keys")
    bare = svix.add_endpoint(acme, "https://b.example.com/", make_secret(9).removeprefix("whsec_"), disabled=True)
    odd = svix.add_endpoint(cafe, "https://user:pass%20word@c.example.com/", "hmac sha1 of my own", uid="кафе")
    coded = svix.add_endpoint(cafe, "https://d.example.com/", uid="coded", mtls={"certificate": "..."})
    svix.transformations[coded] = {"code": "function handler(webhook) { return webhook }", "enabled": True}
    svix.endpoints["operational"] = {}
    types = ["endpoint.disabled", "message.attempt.log"]
    svix.add_endpoint("operational", "https://ops.example.com/", uid="ops", eventTypes=types)
    svix.settings = {"enforceHttps": True, "enableChannels": False, "customColor": None}
    svix.connectors = [{"name": "Slack"}]
    return Hostile(cafe, plain, ed25519, bare, odd, coded)


async def test_a_hostile_set_up_moves_once_and_then_nothing_changes(side):
    at = fill(side.svix)
    cafe = f"svix-{at.cafe}"
    first = await side.run()
    assert not first.failed
    assert not first.gone
    assert {outcome for _, outcome in first.counts} == {Outcome.CREATED}

    crm = await side.endpoint("acme", "crm")
    assert crm["url"] == "https://shop.example.com/hook"
    assert (crm["description"], crm["throttleRate"], crm["metadata"]) == ("Ordnung muß sein", 7, LIMIT)
    assert set(crm["eventTypes"]) == {"invoice.paid", "invoice.old", "invoice.unknown"}
    assert set(crm["channels"]) == {"eu", "us:1", "b+c"}
    assert await side.secret("acme", "crm") == side.svix.secrets[at.plain]
    assert await side.headers("acme", "crm") == {"X-Team": "b"}
    assert await side.secret("acme", f"svix-{at.bare}") == make_secret(9)
    assert (await side.endpoint("acme", f"svix-{at.bare}"))["disabled"]
    assert (await side.endpoint("acme", "keys"))["disabled"]
    assert (await side.secret("acme", "keys")).startswith("whpk_")
    assert (await side.endpoint(cafe, f"svix-{at.odd}"))["auth"] == ["basic"]
    assert (await side.endpoint(cafe, "coded"))["disabled"]
    async with side.context.work(caller=HOST) as work:
        acme, other = await applications.get(work, "acme"), await applications.get(work, cafe)
        paid, old = (
            await event_types.get(work, EventTypeNamed(name="invoice.paid")),
            await event_types.get(work, EventTypeNamed(name="invoice.old")),
        )
        late, odd = (
            await event_types.get(work, EventTypeNamed(name="invoice.late")),
            await event_types.get(work, EventTypeNamed(name="invoice.odd")),
        )
    assert (acme.throttle_rate, acme.metadata) == (50, LIMIT)
    assert (other.throttle_rate, other.metadata, other.name) == (65_535, {}, "Café")
    assert (paid.feature_flags, paid.group_name, paid.schemas) == (
        ("a", "beta", "c"),
        "invoices",
        {"1": {"type": "object"}},
    )
    assert old.is_archived
    assert old.schemas == {"1": {"type": "object", "required": ["id"]}}
    assert (late.is_deprecated, late.feature_flags, odd.schemas) == (True, ("late",), None)

    left = reasons(first)
    assert left.keys() == {
        "event type invoice.odd, schemas.7",
        "application кафе, uid",
        "application кафе, throttleRate",
        "application кафе, metadata",
        "application кафе, region",
        "application acme, endpoint crm, headers.Authorization",
        "application acme, endpoint crm, headers.X-Forwarded-For",
        "application acme, endpoint keys, secret",
        "application кафе, endpoint кафе, uid",
        "application кафе, endpoint кафе, secret",
        "application кафе, endpoint coded, transformation",
        "application кафе, endpoint coded, mtls",
        "operational webhooks, endpoint ops, eventTypes",
        "environment, settings.enforceHttps",
        "environment, connector Slack",
    }
    assert "only the public key of an Ed25519 pair is shown" in left["application acme, endpoint keys, secret"]
    assert "write 1 to 256 letters, digits" in left["application кафе, uid"]

    before = await side.rows()
    second = await side.run()
    assert await side.rows() == before
    assert not second.changes
    assert {outcome for _, outcome in second.counts} == {Outcome.UNCHANGED}
    assert reasons(second) == left
    assert not second.failed
    assert not second.gone
    assert sum(second.counts.values()) == sum(first.counts.values())


async def test_a_later_run_imports_changes(side):
    at = fill(side.svix)
    await side.run()
    old = await side.secret("acme", "crm")
    acme = next(id for id, row in side.svix.apps.items() if row["uid"] == "acme")
    side.svix.secrets[at.plain] = make_secret(77)
    side.svix.headers[at.plain] = {"X-Team": "c", "Authorization": "Bearer hidden"}
    endpoint = side.svix.endpoints[acme][at.plain]
    endpoint |= {
        "uid": "crm2",
        "channels": None,
        "throttleRate": None,
        "disabled": True,
        "filterTypes": ["invoice.old"],
    }
    side.svix.apps[acme] |= {"uid": "acme2", "throttleRate": None, "metadata": {}}
    side.svix.event_types["invoice.paid"]["archived"] = True
    side.svix.event_types["invoice.old"]["archived"] = False
    added = side.svix.add_endpoint(acme, "https://new.example.com/", uid="crm")

    report = await side.run()
    found = changes(report)
    assert found == {
        "event type invoice.paid": ["archived"],
        "event type invoice.old": ["archived"],
        "application acme2": ["uid", "throttleRate", "metadata"],
        "application acme2, endpoint crm2": found["application acme2, endpoint crm2"],
        "application acme2, endpoint crm": "created",
    }
    assert set(found["application acme2, endpoint crm2"]) == {
        "uid", "channels", "throttleRate", "disabled", "eventTypes", "headers", "secret"
    }  # fmt: skip
    assert await side.secret("acme2", "crm2") == make_secret(77)
    assert await side.secret("acme2", "crm") == side.svix.secrets[added]
    async with side.context.work() as work:
        moved = await endpoints.get(work, await applications.get(work, "acme2"), "crm2")
        rows = await work.connection.fetch(
            "select encrypted from boathook.endpoint_secret where endpoint_id = $1 and expires_at > now()", moved.id
        )
    opened = [side.context.secret_box.open(row["encrypted"], f"endpoint_secret:{moved.shown_id}") for row in rows]
    assert opened == [old], "the former secret signs along, so that a receiver accepts either"
    assert not (await side.run()).changes


async def test_an_ed25519_key_moves_if_it_is_given(side):
    at = fill(side.svix)
    await side.run()
    report = await side.run(secrets={at.ed25519: make_private_key(1)})
    assert changes(report) == {"application acme, endpoint keys": ["disabled", "secret"]}
    assert await side.secret("acme", "keys") == public_half(make_private_key(1))
    assert not (await side.endpoint("acme", "keys"))["disabled"]
    again = await side.run()
    assert not again.changes
    assert "application acme, endpoint keys, secret" not in reasons(again)


async def test_a_secret_of_no_endpoint_is_named(side):
    fill(side.svix)
    report = await side.run(secrets={"ep_unknown": make_secret(1)})
    assert failures(report) == {"endpoint ep_unknown, --secrets": "the server has no such endpoint"}


async def test_a_key_of_another_endpoint_is_refused(side):
    at = fill(side.svix)
    report = await side.run(secrets={at.ed25519: make_private_key(2)})
    place = f"application acme, endpoint keys, --secrets.{at.ed25519}"
    assert failures(report) == {place: f"it is not the private key of {public_half(make_private_key(1))}"}
    assert (await side.endpoint("acme", "crm"))["id"], "the other endpoints are imported"


async def test_objects_deleted_in_svix_are_reported_and_optionally_deleted(side):
    at = fill(side.svix)
    await side.run()
    async with side.context.work() as work:
        own = await applications.create(work, applications.NewApplication(name="Own", uid="own"))
        await endpoints.create(
            work, await applications.get(work, "acme"), endpoints.NewEndpoint(url="https://e.test/", uid="own")
        )
    acme = next(id for id, row in side.svix.apps.items() if row["uid"] == "acme")
    side.svix.drop_endpoint(acme, at.bare)
    side.svix.drop_app(at.cafe)
    del side.svix.event_types["invoice.late"]
    gone = {f"application acme, endpoint svix-{at.bare}", f"application svix-{at.cafe}", "event type invoice.late"}

    for _ in range(2):
        report = await side.run()
        assert not report.changes
        assert set(report.gone) == gone
    report = await side.run(deletes=True)
    assert changes(report) == dict.fromkeys(gone, "deleted")
    assert not report.gone
    again = await side.run(deletes=True)
    assert not again.changes
    assert not again.gone
    async with side.context.work(caller=HOST) as work:
        rows = await applications.list_page(work, PageRequest(None, is_ascending=True, limit=10))
        assert {row.uid for row in rows} == {"acme", own.uid}, "what was not imported stays"
        acme_here = await applications.get(work, "acme")
        left = await endpoints.list_page(work, acme_here, PageRequest(None, is_ascending=True, limit=10))
        assert {one.uid for one in left} == {"crm", "keys", "own"}
        assert (await event_types.get(work, EventTypeNamed(name="invoice.late"))).is_archived


def pass_over(svix: SvixServer, app: str, endpoint: str) -> None:
    """Let lists lose an application and an endpoint, as pages may that change while they are read."""

    def script(target: str) -> Answer | None:
        path = target.partition("?")[0]
        if path not in {"/api/v1/app", *(f"/api/v1/app/{id}/endpoint" for id in svix.apps)}:
            return None
        rows = svix.apps if path == "/api/v1/app" else svix.endpoints[path.split("/")[4]]
        data = [row for id, row in rows.items() if id not in {app, endpoint}]
        return Answer(200, {"data": data, "iterator": None, "done": True})

    svix.script = script


async def test_objects_missing_from_a_list_are_not_deleted(side):
    at = fill(side.svix)
    await side.run()
    pass_over(side.svix, at.cafe, at.bare)
    report = await side.run(deletes=True)
    assert not report.changes
    assert not report.gone


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_mutant_without_asking_again_a_list_deletes(side, monkeypatch):
    async def nothing(*_: object) -> None:
        return None

    at = fill(side.svix)
    await side.run()
    pass_over(side.svix, at.cafe, at.bare)
    monkeypatch.setattr(SvixClient, "application", nothing)
    monkeypatch.setattr(SvixClient, "endpoint", nothing)
    report = await side.run(deletes=True)
    assert set(changes(report).values()) == {"deleted"}


def become_another_environment(svix: SvixServer) -> None:
    """Answer like another environment: of the objects known before there is none."""
    svix.apps.clear()
    svix.endpoints.clear()
    svix.endpoints["operational"] = {}
    svix.add_app("Staging", "staging")


async def test_another_environment_deletes_nothing(side):
    fill(side.svix)
    await side.run()
    before = await side.rows()
    become_another_environment(side.svix)
    report = await side.run(deletes=True)
    assert list(failures(report)) == ["the server, --token"]
    assert changes(report) == {"application staging": "created"}
    after = await side.rows()
    assert [row["deleted_at"] for row in after[0]] == [None] * (len(before[0]) + 1)
    assert after[1] == before[1]


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_mutant_without_the_check_another_environment_deletes(side, monkeypatch):
    fill(side.svix)
    await side.run()
    become_another_environment(side.svix)
    monkeypatch.setattr(SvixImporter, "_is_same_environment", lambda *_: True)
    deleted = {name for name, what in changes(await side.run(deletes=True)).items() if what == "deleted"}
    assert {"application acme", "operational webhooks, endpoint ops"} <= deleted


async def test_another_environment_with_equal_uids_needs_deletes(side):
    fill(side.svix)
    await side.run()
    side.svix.apps.clear()
    other = side.svix.add_app("Acme of staging", "acme")
    side.svix.add_endpoint(other, "https://staging.example.com/", uid="crm")
    before = await side.rows()
    report = await side.run()
    assert list(failures(report)) == ["application acme, uid", "the server, --token"]
    assert await side.rows() == before
    report = await side.run(deletes=True)
    assert (await side.endpoint("acme", "crm"))["url"] == "https://staging.example.com/"
    assert changes(report)["application acme"] == ["name", "throttleRate", "metadata"]


def now_and_then(answers: list[Answer]) -> Callable[[str], Answer | None]:
    """Return a script that answers every third request with the next of these."""
    count = 0

    def script(_: str) -> Answer | None:
        nonlocal count
        count += 1
        return answers.pop(0) if answers and count % 3 == 0 else None

    return script


async def test_limits_and_faults_on_the_way_are_waited_out(side):
    fill(side.svix)
    busy = Answer(429, {"code": "rate_limited", "detail": "slow down"}, {"retry-after": "17"})
    later = Answer(429, None, {"retry-after": "Sat, 01 Jan 2000 00:00:00 GMT"})
    side.svix.script = now_and_then([busy, Answer(500, {}), later, Answer(503), Answer(502), busy])
    report = await side.run()
    assert not report.failed
    assert len(side.waited) == 6
    assert side.waited.count(17.0) == 2
    assert 0.0 in side.waited, "a date that has passed"
    side.svix.script = lambda _: None
    assert not (await side.run()).changes


async def test_objects_added_or_deleted_while_paging_are_handled(side):
    at = fill(side.svix)
    acme = next(id for id, row in side.svix.apps.items() if row["uid"] == "acme")

    def change(target: str) -> Answer | None:
        if target.endswith(f"/{at.bare}/secret"):
            side.svix.endpoints[acme].pop(at.bare, None)
        if f"/app/{acme}/endpoint?" in target and "iterator" in target:
            row = side.svix.endpoints[acme][at.plain]
            data = [row, side.svix.endpoints[acme][at.bare]]
            return Answer(200, {"data": data, "iterator": at.bare, "done": True})
        if "/app?" in target and "iterator" not in target:
            side.svix.add_app("Late", "late")
        return None

    side.svix.page = 1
    side.svix.script = change
    report = await side.run()
    assert not report.failed
    created = set(changes(report))
    assert {"application acme, endpoint crm", "application late"} <= created
    assert not any(at.bare in name for name in created), "it was deleted before its secret was read"


async def test_a_persistent_outage_stops_the_import_and_keeps_its_work(side):
    fill(side.svix)
    side.svix.script = lambda target: Answer(503, {}) if "/endpoint" in target else None
    report = await side.run()
    (failed,) = report.failed
    assert failed.object == "the import stopped"
    assert "returned 503" in failed.reason
    assert len(side.waited) == 7
    assert {one.object for one in report.changes} == {f"event type {name}" for name in side.svix.event_types}
    side.svix.script = lambda _: None
    assert not (await side.run()).failed


@pytest.mark.parametrize(
    ("answer", "expected"),
    sampled(
        [
            (Answer(200, {"data": [], "iterator": None, "done": False}), "does not end"),
            (Answer(200, {"data": [{}], "iterator": None, "done": True}), "data is not a list of objects with name"),
            (Answer(200, ["html"]), "did not return a JSON object"),
            (Answer(200), "did not return a JSON object"),
            (Answer(301, None, {"location": "https://eu.example.com/"}), "redirects to https://eu.example.com/"),
            (Answer(403, {"code": "insufficient access", "detail": "no"}), "GET /api/v1/event-type returned 403"),
            (NOT_FOUND, "returned 404"),
        ],
        keep=3,
    ),
)
async def test_a_server_that_is_not_svix_is_reported(side, answer, expected):
    side.svix.script = lambda _: answer
    with pytest.raises(FetchFailed, match=expected):
        await side.run()


async def test_a_token_that_is_refused_is_named(side):
    with pytest.raises(ConfigError, match=r"--token: .* refuses it: .*Invalid token"):
        await side.run(token="wrong")


async def test_rejected_objects_do_not_affect_the_rest(side):
    acme = side.svix.add_app("Acme", "acme")
    side.svix.add_app("", "nameless")
    side.svix.add_app("Slow", "slow", throttleRate=0)
    side.svix.add_endpoint(acme, "ftp://a.example.com/", uid="ftp")
    side.svix.add_endpoint(acme, "https://a.example.com/", uid="many", channels=["x" * 200])
    side.svix.add_endpoint(acme, "https://a.example.com/", uid="good")
    side.svix.add_type("a b")
    denied = side.svix.add_app("Denied", "denied")
    side.svix.script = lambda target: Answer(403, {"detail": "no"}) if f"/{denied}/" in target else None
    for _ in range(2):
        report = await side.run()
        assert failures(report).keys() == {
            "event type a b, name",
            "application nameless, name",
            "application slow, throttleRate",
            "application acme, endpoint ftp, url",
            "application acme, endpoint many, channels",
            "application denied",
        }
        assert (await side.endpoint("acme", "good"))["url"] == "https://a.example.com/"


async def test_a_dry_run_reports_the_same_and_changes_nothing(side):
    fill(side.svix)
    before = await side.rows()
    dry = await side.run(is_dry_run=True)
    assert await side.rows() == before
    wet = await side.run()
    assert (dry.counts, dry.changes, dry.not_moved) == (wet.counts, wet.changes, wet.not_moved)


def commit_each_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports do without transactions."""

    @contextlib.asynccontextmanager
    async def work(self: SvixImporter) -> AsyncIterator[UnitOfWork]:
        async with self._app_context.database.acquire() as connection:
            yield UnitOfWork(self._app_context, connection, self._options.organization, self._options.actor, HOST)

    monkeypatch.setattr(SvixImporter, "_work", work)


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_mutant_a_dry_run_that_commits_is_detected(side, monkeypatch):
    fill(side.svix)
    before = await side.rows()
    commit_each_statement(monkeypatch)
    await side.run(is_dry_run=True)
    assert await side.rows() != before


async def test_an_application_is_imported_whole_or_not_at_all(side, monkeypatch):
    fill(side.svix)
    create = endpoints.create

    async def fail_at_b(work: Any, application: Any, new: Any, **more: Any) -> Any:
        if "b.example.com" in new.url:
            raise DatabaseError("PostgreSQL is unavailable")
        return await create(work, application, new, **more)

    monkeypatch.setattr(endpoints, "create", fail_at_b)
    report = await side.run()
    assert failures(report) == {"the import stopped": "PostgreSQL is unavailable"}
    rows = await side.rows()
    assert rows[:3] == [[], [], []]
    monkeypatch.undo()
    assert not (await side.run()).failed


async def test_mutant_without_a_transaction_a_part_of_it_stays(side, monkeypatch):
    fill(side.svix)

    async def fail(*_: object, **__: object) -> None:
        raise DatabaseError("PostgreSQL is unavailable")

    monkeypatch.setattr(endpoints, "create", fail)
    commit_each_statement(monkeypatch)
    assert (await side.run()).failed
    assert (await side.rows())[0]


async def test_an_endpoint_that_boathook_has_disabled_is_not_enabled(side):
    fill(side.svix)
    await side.run()
    async with side.context.work() as work:
        crm = await endpoints.get(work, await applications.get(work, "acme"), "crm")
        await stored_endpoints.disable(work.connection, crm.id, "gone", datetime.now(UTC))
    assert not (await side.run()).changes
    assert (await side.endpoint("acme", "crm"))["disabled"]


async def test_an_endpoint_is_changed_with_the_archived_types_that_it_has(side):
    fill(side.svix)
    await side.run()
    async with side.context.work() as work:
        acme = await applications.get(work, "acme")
        names = [*((await endpoints.get(work, acme, "crm")).event_types or ()), "invoice.late"]
        changed = await endpoints.update(work, acme, "crm", {"event_types": names})
        assert set(changed.event_types or ()) == set(names)
        with pytest.raises(InvalidValue, match=r"no event type invoice\.gone"):
            await endpoints.update(work, acme, "crm", {"event_types": [*names, "invoice.gone"]})
        with pytest.raises(InvalidValue, match=r"no event type invoice\.old"):
            await endpoints.update(work, acme, "keys", {"event_types": ["invoice.old"]})


async def test_endpoints_may_be_created_disabled_and_stay_as_they_are_set(side):
    at = fill(side.svix)
    await side.run(is_disabled=True)
    assert (await side.endpoint("acme", "crm"))["disabled"]
    async with side.context.work() as work:
        await endpoints.update(work, await applications.get(work, "acme"), "crm", {"is_disabled": False})
    acme = next(id for id, row in side.svix.apps.items() if row["uid"] == "acme")
    side.svix.endpoints[acme][at.plain]["disabled"] = True
    assert not (await side.run(is_disabled=True)).changes
    assert not (await side.endpoint("acme", "crm"))["disabled"]


async def test_existing_objects_are_updated_and_keep_extra_fields(side):
    at = fill(side.svix)
    async with side.context.work() as work:
        made = await applications.create(work, applications.NewApplication(name="By hand", uid="acme"))
        new = endpoints.NewEndpoint(url="https://old.test/", uid="crm", order_by="customer", concurrency=3)
        own = await endpoints.create(work, made, new, headers={"authorization": "Bearer ours", "X-Old": "1"})
    report = await side.run()
    crm = await side.endpoint("acme", "crm")
    assert (crm["id"], crm["orderBy"], crm["concurrency"]) == (own.shown_id, "customer", 3)
    assert crm["url"] == "https://shop.example.com/hook"
    assert await side.headers("acme", "crm") == {"authorization": "Bearer ours", "X-Team": "b"}
    assert "application acme, endpoint crm, headers.Authorization" not in reasons(report)
    assert await side.secret("acme", "crm") == side.svix.secrets[at.plain]


# Ids as in Svix's documentation of its API: https://api.svix.com/docs
APP_ID, ENDPOINT_ID = "app_1srOrx2ZWZBpBUvZwXKQmoEYga2", "ep_1srOrx2ZWZBpBUvZwXKQmoEYga2"


def fill_with_ids(svix: SvixServer, uid: str | None) -> None:
    """Set up an application and an endpoint with these ids and, unless it is None, a uid."""
    svix.add_app("Acme", uid, id=APP_ID)
    svix.add_endpoint(APP_ID, "https://a.example.com/", uid=uid, id=ENDPOINT_ID)


@pytest.mark.parametrize("uid", [None, "acme"])
async def test_imported_objects_are_reached_by_their_ids_on_the_server(side: Side, uid: str | None) -> None:
    fill_with_ids(side.svix, uid)
    assert not (await side.run()).failed
    api, app = ApiClient(side.context, await make_token(side.context)), f"/app/{APP_ID}"
    at = f"{app}/endpoint/{ENDPOINT_ID}"
    made, endpoint = await api.ask(200, "GET", app), await api.ask(200, "GET", at)
    assert (made["uid"], endpoint["uid"]) == (uid or f"svix-{APP_ID}", uid or f"svix-{ENDPOINT_ID}")
    assert await api.ask(200, "GET", f"/app/{made['uid']}/endpoint/{endpoint['uid']}") == endpoint
    assert (await api.ask(200, "PATCH", app, {"name": "New"}))["id"] == made["id"]
    assert (await api.ask(200, "PATCH", at, {"description": "new"}))["id"] == endpoint["id"]

    body = {"eventType": "invoice.paid", "payload": {}}
    message = await api.ask(202, "POST", f"{app}/msg", body)
    assert await api.ask(200, "GET", f"{app}/msg/{message['id']}")
    assert [one["id"] for one in (await api.ask(200, "GET", f"{app}/endpoint/{ENDPOINT_ID}/msg"))["data"]] == [
        message["id"]
    ]
    await api.ask(404, "GET", f"/app/{APP_ID[:-1]}x")
    await api.ask(404, "GET", f"{app}/endpoint/{ENDPOINT_ID[:-1]}x")
    async with side.context.work() as work:
        assert (await applications.find(work, APP_ID)).shown_id == made["id"]
        assert await store.has_application(work.connection, "default", APP_ID)
        assert not await store.has_application(work.connection, "other", APP_ID)


@pytest.mark.parametrize("uid", [None, "acme"])
async def test_an_app_publishes_by_the_id_on_the_server(side: Side, uid: str | None) -> None:
    fill_with_ids(side.svix, uid)
    await side.run()
    await register(side.context.database, "tests", [Route(recipient="handler:a", app="tests", application=APP_ID)])
    db, hook = side.context.database, Boathook("shop")
    platform = bind(load(None, {"server.app": "shop:hook", "database.url": db.url}), [hook])
    async with db.transaction() as connection:
        for name in (APP_ID, uid or f"svix-{APP_ID}", APP_ID):
            await hook.publish(connection, application=name, type="invoice.paid", payload={})
    await platform.stop()
    async with side.context.work() as work:
        shown_id = (await applications.get(work, APP_ID)).shown_id
    assert await db.fetchval("select count(*) from boathook.event where application = $1", shown_id) == 3
    names = await db.fetchval("select boathook.application_names($1)", APP_ID)
    assert names == [APP_ID, shown_id]
    assert await db.fetchval("select count(*) from boathook.delivery where recipient = 'handler:a'") == 3


async def test_messages_follow_an_imported_id_to_another_application(side: Side) -> None:
    """A publisher that has cached the routes of the former one does not use them."""
    fill_with_ids(side.svix, "acme")
    await side.run()
    api = ApiClient(side.context, await make_token(side.context))
    body, path = {"eventType": "invoice.paid", "payload": {}}, f"/app/{APP_ID}/msg"
    await api.ask(202, "POST", path, body)
    other = await api.ask(201, "POST", "/app", {"name": "Other"})
    statement = "update boathook.application set imported_id = $2 where name = $1"
    await side.context.database.execute(statement, "Acme", None)
    await side.context.database.execute(statement, "Other", APP_ID)
    message = await api.ask(202, "POST", path, body)
    await api.ask(200, "GET", f"/app/{other['id']}/msg/{message['id']}")


async def test_an_id_comes_before_an_imported_id(side: Side) -> None:
    async with side.context.work() as work:
        first = await applications.create(work, applications.NewApplication(name="First", uid="first"))
        second = await applications.create(work, applications.NewApplication(name="Second", uid="second"))
        for one, other in ((first, second), (second, first)):
            await stored_applications.set_imported_id(work.connection, one.id, other.shown_id)
    api = ApiClient(side.context, await make_token(side.context))
    for one in (first, second):
        assert (await api.ask(200, "GET", f"/app/{one.shown_id}"))["name"] == one.name
        message = await api.ask(202, "POST", f"/app/{one.shown_id}/msg", {"eventType": "a", "payload": {}})
        stored = await side.context.database.fetchval(
            "select application from boathook.event where id = $1", ids.read(ids.MESSAGE, message["id"])
        )
        assert stored == one.shown_id


@pytest.mark.parametrize("uid", [None, "acme"])
async def test_a_repeated_import_adds_ids_to_objects_of_earlier_imports(side: Side, uid: str | None) -> None:
    fill_with_ids(side.svix, uid)
    await side.run()
    whole = await side.rows()
    for table in ("application", "endpoint"):
        await side.context.database.execute(f"update boathook.{table} set imported_id = null")
    report = await side.run()
    assert not report.failed
    assert not report.changes
    assert (await side.endpoint(APP_ID, ENDPOINT_ID))["url"] == "https://a.example.com/"
    whole_again = await side.rows()
    assert [len(rows) for rows in whole_again] == [len(rows) for rows in whole]
    await side.run()
    assert await side.rows() == whole_again


async def test_more_endpoints_than_there_may_be_are_named(side, monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_ENDPOINTS", 2)
    acme = side.svix.add_app("Acme", "acme")
    for number in range(4):
        side.svix.add_endpoint(acme, f"https://a.example.com/{number}", uid=f"e{number}")
    report = await side.run()
    assert list(failures(report)) == ["application acme, endpoint e2", "application acme, endpoint e3"]


async def test_the_report_is_json(side):
    fill(side.svix)
    assert json.loads(json.dumps(plain((await side.run()).plain())))["counts"]["event type"] == {"created": 4}
