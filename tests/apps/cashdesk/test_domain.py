"""The bit mask, the forms, the drive and the made-up shops, without a server."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import boathook_cashdesk
from boathook.config import load
from boathook.domain.filters import Pattern
from boathook.domain.policy import RETRY_PRESETS
from boathook.server.loading import settings_of
from boathook_cashdesk.app import webhooks
from boathook_cashdesk.drive import DriveBusy, SimulatedDrive
from boathook_cashdesk.entities import (
    EVENT_TYPES,
    Action,
    Entity,
    event_type,
)
from boathook_cashdesk.forms import ProductForm, ReceiptForm, read
from boathook_cashdesk.settings import CashdeskSettings, DriveSettings
from boathook_cashdesk.simulator import Change, Shop, SimulatedRequest, read_change
from boathook_pages import InvalidForm

EVERYTHING = 2 ** len(Entity) - 1
MASKS = range(EVERYTHING + 1)


class TestMask:
    def test_has_one_bit_for_each_kind(self):
        assert [webhooks.mask_of({entity: True}) for entity in Entity] == [1, 2, 4, 8, 16, 32]
        assert EVERYTHING == 63

    @pytest.mark.parametrize("mask", MASKS)
    def test_is_types_and_types_are_it(self, mask: int):
        assert webhooks.mask_of(webhooks.types_of(mask)) == mask
        assert set(webhooks.types_of(mask)) == set(Entity)

    @pytest.mark.parametrize("mask", MASKS)
    def test_patterns_fit_the_events_of_its_kinds_and_no_others(self, mask: int):
        patterns = [Pattern(text) for text in webhooks.patterns_of(mask)]
        for entity, action in product(Entity, Action):
            fits = any(pattern.matches(event_type(entity, action)) for pattern in patterns)
            assert fits is webhooks.types_of(mask)[entity]

    def test_of_nothing_has_no_patterns(self):
        assert webhooks.patterns_of(0) == []

    def test_all_events_have_a_type(self):
        assert sorted(EVENT_TYPES) == sorted(event_type(entity, action) for entity, action in product(Entity, Action))
        assert len(EVENT_TYPES) == 18


def test_delays_are_0_5s_1min_1h_3h_24h():
    policy = RETRY_PRESETS["cashdesk"]
    assert list(policy.delays_s or ()) == [5, 60, 3_600, 3 * 3_600, 24 * 3_600]
    assert policy.jitter == 0.0
    assert {policy.wait_s(attempt, luck) for attempt, luck in ((1, 0.0), (1, 0.99))} == {5.0}
    assert policy.max_age_s > 5 + 60 + 28 * 3_600


def test_a_request_may_take_20_s():
    assert (webhooks.retry, webhooks.timeout_s) == ("cashdesk", 20.0)


class TestForms:
    @pytest.mark.parametrize(
        ("form", "document", "field"),
        [
            (webhooks.form, {"url": "https://a.example", "types": {"produkts": True}}, "types.produkts"),
            (webhooks.form, {"url": "https://a.example", "types": {"products": "yes"}}, "types.products"),
            (webhooks.form, {"url": "https://a.example", "types": {"products": 1}}, "types.products"),
            (webhooks.form, {"url": "https://a.example", "types": ["products"]}, "types"),
            (webhooks.form, {"url": "https://a.example"}, "types"),
            (webhooks.form, {"types": {}}, "url"),
            (webhooks.form, {"url": "", "types": {}}, "url"),
            (webhooks.form, {"url": "https://a\x00.example", "types": {}}, "url"),
            (webhooks.form, {"url": "https://a.example", "types": {}, "active": None}, "active"),
            (webhooks.form, {"url": "https://a.example", "types": {}, "secret": "x"}, "secret"),
            (ProductForm, {"name": "tea", "price": 1.5}, "price"),
            (ProductForm, {"name": "tea", "price": -1}, "price"),
            (ProductForm, {"name": "tea", "price": True}, "price"),
            (ProductForm, {"name": "a\nb", "price": 1}, "name"),
            (ProductForm, {"name": "x" * 201, "price": 1}, "name"),
            (ReceiptForm, {"shift_id": 1, "items": []}, "items"),
            (ReceiptForm, {"shift_id": 1, "items": [{"product_id": 1, "quantity": 0}]}, "items.0.quantity"),
            (ReceiptForm, {"shift_id": 1, "items": [{"name": "", "price": 1, "quantity": 1}]}, "items.0.name"),
            (ReceiptForm, {"shift_id": 1, "items": [{"name": "tea", "price": -1, "quantity": 1}]}, "items.0.price"),
            (
                ReceiptForm,
                {"shift_id": 1, "items": [{"name": "tea", "price": 1, "quantity": 1, "vat": "19"}]},
                "items.0.vat",
            ),
            (ReceiptForm, {"shift_id": 2**63, "items": [{"product_id": 1, "quantity": 1}]}, "shift_id"),
        ],
    )
    def test_an_invalid_value_names_its_field(self, form: Any, document: Any, field: str):
        for given in (document, json.dumps(document).encode()):
            with pytest.raises(InvalidForm) as caught:
                read(form, given)
            assert caught.value.field == field

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"name": "\\ud800", "price": 1}', b"[" * 9_999]
    )
    def test_a_non_object_is_refused(self, body: bytes):
        with pytest.raises(InvalidForm):
            read(ProductForm, body)

    def test_omitted_types_are_not_subscribed(self):
        assert webhooks.types_of(webhooks.mask_of({"shifts": True})) == {
            entity: entity == Entity.SHIFTS for entity in Entity
        }

    def test_the_largest_receipt_fits_its_column(self):
        price = ProductForm.model_json_schema()["properties"]["price"]["maximum"]
        items = ReceiptForm.model_json_schema()
        quantity = items["$defs"]["ItemForm"]["properties"]["quantity"]["maximum"]
        assert price * quantity * items["properties"]["items"]["maxItems"] < 2**63


class TestDrive:
    async def test_one_key_is_one_sign(self):
        drive = SimulatedDrive(DriveSettings(seconds=0))
        first = await drive.fiscalise({"total": 1}, 1, idempotency_key="a")
        assert first == await SimulatedDrive(DriveSettings(seconds=0)).fiscalise({"total": 1}, 2, idempotency_key="a")
        assert first != await drive.fiscalise({"total": 1}, 1, idempotency_key="b")
        assert len(first["sign"] or "") == 10

    async def test_declines_what_is_too_large(self):
        verdict = await SimulatedDrive(DriveSettings(seconds=0, largest=5)).fiscalise(
            {"total": 6}, 1, idempotency_key="a"
        )
        assert verdict["sign"] is None
        assert str(verdict["declined"]).startswith("TOTAL_TOO_LARGE")

    async def test_is_busy_at_the_configured_rate(self):
        drive, away = SimulatedDrive(DriveSettings(seconds=0, busy=0.3)), 0
        for number in range(500):
            try:
                await drive.fiscalise({"total": 1}, number, idempotency_key="a")
            except DriveBusy:
                away += 1
        assert 100 < away < 200


class ResponseCounts:
    """A cabinet in memory that can answer a simulated shop."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, int]] = {entity: {} for entity in Entity}
        self.published: list[Change] = []
        self.number = 0

    def answer(self, request: SimulatedRequest) -> tuple[int, bytes]:
        kind, *rest = request.path.removeprefix("/cabinet/api/").split("/")
        if 401 in request.expect or 400 in request.expect or 404 in request.expect:
            return next(iter(request.expect)), b"{}"
        document = json.loads(request.body) if request.body else {}
        if kind == "receipts":
            return self._sell(document)
        if request.method == "POST" and not rest:
            return 201, self._make(Entity(kind))
        if request.method == "DELETE":
            id = int(rest[0])
            self.published.append(Change(Entity(kind), Action.DELETE, id, self.rows[kind].pop(id)))
            return 204, b""
        return 200, self._change(Entity(kind), int(rest[0]))

    def _make(self, kind: Entity) -> bytes:
        self.number += 1
        self.rows[kind][self.number] = 1
        self.published.append(Change(kind, Action.CREATE, self.number, 1))
        return json.dumps({"id": self.number, "revision": 1}).encode()

    def _change(self, kind: Entity, id: int) -> bytes:
        self.rows[kind][id] += 1
        self.published.append(Change(kind, Action.UPDATE, id, self.rows[kind][id]))
        return json.dumps({"id": id, "revision": self.rows[kind][id]}).encode()

    def _sell(self, document: dict[str, Any]) -> tuple[int, bytes]:
        sold = self.__dict__.setdefault("sold", {})
        if document["external_id"] in sold:
            return 202, sold[document["external_id"]]
        made = {kind: json.loads(self._make(kind + "s")) for kind in ("receipt", "operation")}
        for kind, state in made.items():
            self._change(kind + "s", state["id"])
        sold[document["external_id"]] = json.dumps(made).encode()
        return 202, sold[document["external_id"]]


class TestSimulator:
    def test_knows_which_changes_its_webhooks_must_deliver(self):
        shop, answers = Shop("cdk_x", 7), ResponseCounts()
        for _ in range(400):
            request = shop.write()
            shop.answered(request, *answers.answer(request))
        assert shop.surprises == []
        assert shop.expected(webhooks.types_of(EVERYTHING)) == {
            Change(Entity(one.entity), one.action, one.id, one.revision) for one in answers.published
        }
        kinds = {(change.entity, change.action) for change in shop.changes}
        assert len(kinds) >= 14, "a long day has nearly everything in it"

    def test_expects_only_subscribed_entities(self):
        shop, answers = Shop("cdk_x", 7), ResponseCounts()
        for _ in range(50):
            request = shop.write()
            shop.answered(request, *answers.answer(request))
        wanted = shop.expected(webhooks.types_of(1))
        assert wanted
        assert {change.entity for change in wanted} == {Entity.PRODUCTS}

    def test_the_same_seed_makes_the_same_requests(self):
        requests = []
        for _ in range(2):
            shop, answers = Shop("cdk_x", 3), ResponseCounts()
            written = []
            for _ in range(100):
                request = shop.write()
                written.append(request)
                shop.answered(request, *answers.answer(request))
            requests.append(written)
        assert requests[0] == requests[1]

    def test_an_unexpected_response_is_a_surprise(self):
        shop = Shop("cdk_x", 1)
        shop.answered(shop.write(), 500, b"oops")
        assert len(shop.surprises) == 1

    def test_reads_a_change_from_an_event(self):
        payload = {"type": "shifts", "action": "DELETE", "object": {"id": 4, "revision": 2}}
        assert read_change(payload) == Change(Entity.SHIFTS, Action.DELETE, 4, 2)


def test_the_sample_configuration_loads_as_it_is():
    settings = load(Path(boathook_cashdesk.__file__).with_name("boathook.toml"))
    assert settings.apps.load == ("cashdesk",)
    chosen = settings_of(boathook_cashdesk.hook, settings)
    assert isinstance(chosen, CashdeskSettings)
    assert chosen.drive.busy == 0.05
