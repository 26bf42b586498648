"""What owners, strangers and servers may try on apps, and what must come of it: an answer, a sentence, and no secret."""

import asyncio
import json
import time

import pytest
from websockets.frames import Opcode

from boathook import Boathook
from boathook.cli.apps import tables
from boathook.cli.commands import read_opening
from boathook.dispatch import chores
from boathook.domain.errors import ConfigError
from boathook.handlers.manifest import Chore
from boathook.inbound import sockets
from boathook.inbound.shape import compile_shape
from boathook.server.lifespan import Lifespan
from boathook.server.loading import load_apps, with_apps
from boathook.server.visits import SocketVisit
from boathook.telemetry import emit
from boathook.telemetry.exporters import merge, to_prometheus
from tests.support import eventually
from tests.unit.test_loading import Place, complaint, place, same_metrics
from tests.unit.test_sockets import Stand, frame
from tests.unit.test_visits import Client

__all__ = ["place", "same_metrics"]

HEAD = """
from boathook import Boathook
from pydantic import BaseModel, field_validator
"""
TREE = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
HMAC = '{"provider": "hmac", "secret": "hush", "header": "X-Mac"}'


def declaring(name: str, sources: str) -> str:
    """Return an app with this expression as its sources."""
    return f"{HEAD}\nhook = Boathook({name!r})\n@hook.sources\ndef sources(_):\n    return {sources}\n"


class TestMistakesOfOwners:
    def test_a_module_that_exits_while_it_is_imported_is_told_of(self, place: Place):
        settings = place("import sys\nsys.exit('bye')\n")
        assert "fails: SystemExit: bye" in complaint(lambda: load_apps(settings))

    def test_a_setting_that_the_app_cannot_even_check_is_told_of(self, place: Place):
        code = f"""{HEAD}
class Own(BaseModel):
    size: int = 1

    @field_validator("size", mode="before")
    @classmethod
    def grow(cls, given):
        return given + 1

hook = Boathook("shelf", settings=Own)
"""
        settings = place(code, toml='[shelf]\nsize = "3"')
        assert "boathook.toml: shelf: the app fails to check it: TypeError" in complaint(lambda: load_apps(settings))

    def test_the_value_of_a_mistyped_secret_is_not_told(self, place: Place):
        code = f"{HEAD}\nclass Own(BaseModel, extra='forbid'):\n    secret: str = ''\nhook = Boathook('shelf', settings=Own)"
        settings = place(code, toml='[shelf]\nsecrett = "hush"')
        assert complaint(lambda: load_apps(settings)).endswith("shelf.secrett: is not a setting")

    @pytest.mark.parametrize("sources", ["None", "[]", '{"books": None}', '[{"provider": "hmac"}]'])
    def test_sources_that_are_none_are_told_of(self, place: Place, sources: str):
        settings = place(declaring("shelf", sources))
        assert "must return tables by their names" in complaint(lambda: with_apps(settings))

    @pytest.mark.parametrize("name", ["../x", "a b", "a/b", "", "a%2fb", "x\n"])
    def test_a_source_whose_name_no_address_can_have_is_refused(self, place: Place, name: str):
        settings = place(declaring("shelf", f"{{{name!r}: {HMAC}}}"))
        assert "is part of an address" in complaint(lambda: with_apps(settings))

    def test_two_apps_with_one_source_are_refused(self, place: Place):
        mine, yours = declaring("shelf", f'{{"books": {HMAC}}}'), declaring("desk", f'{{"books": {HMAC}}}')
        assert "both declare the source 'books'" in complaint(lambda: with_apps(place(mine, yours)))

    def test_passwords_in_addresses_and_numbers_are_not_shown(self, place: Place):
        shown = json.dumps(tables(place(toml='[shelf]\nurl = "https://me:hush@host/x"\npassword = 4711\nkeys = [1]')))
        assert "hush" not in shown
        assert "4711" not in shown
        assert "[1]" not in shown
        assert "https://me:(hidden)@host/x" in shown

    @pytest.mark.parametrize("arguments", [["--config"], ["-c"], ["--config="]])
    def test_half_an_option_is_no_fault_of_ours(self, arguments: list[str]):
        assert read_opening(arguments)[1] is None


class TestMetrics:
    @pytest.mark.parametrize("label", ["name", "n", "value", "self"])
    def test_a_label_may_have_any_other_name(self, same_metrics: None, label: str):
        hook = Boathook("shelf")
        hook.counter(f"shelf_{label}_total", "x", label).add(2, **{label: "a"})
        hook.gauge(f"shelf_{label}", "x", label).set(3, **{label: "a"})
        hook.histogram(f"shelf_{label}_seconds", "x", label).observe(1, **{label: "a"})
        assert emit.snapshot()[f"shelf_{label}_total"] == [[["a"], 2]]

    @pytest.mark.parametrize("labels", [("le",), ("a", "a"), ("__name__",)])
    def test_labels_that_would_spoil_all_metrics_are_refused(self, same_metrics: None, labels: tuple[str, ...]):
        with pytest.raises(ConfigError, match="labels must differ"):
            Boathook("shelf").counter("shelf_total", "x", *labels)

    @pytest.mark.parametrize("bounds", [(5, 1), (1, 1), (float("nan"),), (1, float("inf"))])
    def test_bounds_that_would_spoil_all_metrics_are_refused(self, same_metrics: None, bounds: tuple[float, ...]):
        with pytest.raises(ConfigError, match="bounds must be"):
            Boathook("shelf").histogram("shelf_seconds", "x", bounds=bounds)

    def test_what_strangers_bring_into_labels_and_helps_spoils_nothing(self, same_metrics: None):
        books = Boathook("shelf").counter("shelf_books_total", "first\nsecond \\ third", "title")
        for title in ("\ud800", "x" * 1_000_000, 'a"b\nc\\'):
            books.add(title=title)
            books.add(title=title)
        text = to_prometheus(merge(None, None, 0.0)).encode()
        lines = [line for line in text.splitlines() if b"shelf_books_total" in line]
        assert lines[0] == rb"# HELP shelf_books_total first\nsecond \\ third"
        assert [line[-2:] for line in lines[2:]] == [b" 2"] * 3
        assert len(text) < 100_000
        assert max(len(str(key)) for key in emit._quick) < 1_000


def test_settings_show_no_secret_of_an_app(place: Place):
    settings = place(toml='[shelf]\nsecret = "hush"\n[sources.books]\nsecret = "hush"')
    assert "hush" not in repr(settings)


class TestHostileBodies:
    @pytest.mark.parametrize("leaf", ["\\" * 500_000, list(range(130_000))], ids=["text", "numbers"])
    def test_what_is_told_of_large_bodies_costs_little(self, leaf: object):
        for _ in range(100):
            leaf = [leaf]
        body = json.dumps(leaf).encode()
        shape = compile_shape("books", TREE)
        began = time.thread_time()
        assert "steps" in (shape.fault_of(body) or "")
        spent = time.thread_time() - began
        began = time.thread_time()
        repr(json.loads(body))
        assert spent < 30 * (time.thread_time() - began)

    def test_a_large_body_is_still_judged_through_several_alternatives(self):
        body = json.dumps([[["x" * 900_000]]]).encode()
        schema = {"anyOf": [{"type": "integer"}, {"type": "array"}], "items": {"anyOf": [{"type": "null"}, {}]}}
        assert compile_shape("books", schema).fault_of(body) is None


def test_sabotage_without_a_charge_for_what_is_told_the_cost_shows(monkeypatch: pytest.MonkeyPatch):
    from boathook.inbound import schemas

    monkeypatch.setattr(schemas, "_TOLD", 10**12)
    with pytest.raises(AssertionError):
        TestHostileBodies().test_what_is_told_of_large_bodies_costs_little(list(range(130_000)))


class TestFloodsOfFrames:
    async def test_tiny_messages_in_one_piece_are_held_as_they_came(self):
        stand = await Stand().accept()
        stand.socket.data_received(frame(Opcode.TEXT) * 40_000)
        await asyncio.sleep(0)
        assert len(stand.socket._unread) < 500
        assert not stand.wire.is_reading

    async def test_none_of_them_is_lost_or_comes_out_of_turn(self):
        stand = await Stand().accept()
        stand.socket.data_received(b"".join(frame(Opcode.TEXT, b"%d" % n) for n in range(3_000)))
        got = [await stand.ask("receive") for _ in range(3_000)]
        assert [int(message["text"]) for message in got] == list(range(3_000))
        await eventually(lambda: stand.wire.is_reading)

    async def test_pings_leave_others_their_turn(self):
        stand = await Stand().accept()
        stand.socket.data_received(frame(Opcode.PING) * 2_000 + frame(Opcode.TEXT, b"last"))
        assert len(stand.frames()) < 1_000
        assert (await stand.ask("receive"))["text"] == "last"
        assert len(stand.frames()) == 2_000

    async def test_a_close_behind_many_frames_is_heard_after_them(self):
        stand = await Stand().accept()
        stand.socket.data_received(frame(Opcode.TEXT, b"x") * 2_000 + frame(Opcode.CLOSE, b"\x03\xe8"))
        for _ in range(2_000):
            assert (await stand.ask("receive"))["type"] == "websocket.receive"
        assert (await stand.ask("receive"))["code"] == 1000
        assert stand.wire.is_closed

    async def test_sabotage_where_all_is_read_at_once_thousands_are_held(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sockets, "_SLICE", 1 << 30)
        with pytest.raises(AssertionError):
            await self.test_tiny_messages_in_one_piece_are_held_as_they_came()


class TestApplicationsThatExit:
    @staticmethod
    async def leave(_scope, _receive, _send) -> None:
        raise SystemExit(3)

    async def test_end_their_request_and_not_the_gateway(self):
        client = await Client(b"").call(self.leave)
        assert client.status == 500

    async def test_end_their_answer_and_not_the_gateway(self):
        async def begin(_scope, _receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise SystemExit(3)

        with pytest.raises(Exception, match="amid its answer"):
            await Client(b"").call(begin)

    async def test_end_their_websocket_and_not_the_gateway(self):
        client = Client()
        await SocketVisit(client.receive, client.send, "req_1", None).run(self.leave, {"path": "/x"})
        assert client.got[0]["status"] == 500

    async def test_end_their_life_and_not_the_gateway(self):
        life = Lifespan(self.leave)
        life.open()
        await eventually(lambda: life.is_up)
        await life.close()

    async def test_end_their_chore_and_not_the_keeper(self):
        async def leave() -> None:
            raise SystemExit(3)

        await chores._do(chores._Owned("shelf", Chore(name="tidy", every_s=1.0, function=leave)))
        assert emit.snapshot()["boathook_chores_total"][-1][0] == ["shelf", "tidy", "failed"]
