"""Any body of a verified request is stored byte for byte, without a server error."""

import hashlib
import hmac
import http.client
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg
import pytest

from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.model import Route
from boathook.providers.request_reader import FieldExtractor
from tests.acceptance.conftest import BoathookProcess, shared_boathook  # noqa: F401 - one is a fixture
from tests.security.json_texts import EITHER, NOT_READ, READ, TEXTS, within
from tests.support import sampled

SECRET = "a-secret-of-this-corpus"
PLAIN = f'provider = "hmac"\nsecrets = ["{SECRET}"]\nheader = "X-Signature"\nmax_body = 4_194_304\n'
SOURCES = f"""
[sources.plain]
{PLAIN}
[sources.looked]
{PLAIN}
id_path = "data.id"
type_path = "type"
dedup_fields = ["data.key", "id"]
[sources.shaped]
{PLAIN}
schema = "shape.json"
"""
SHAPE = {"type": ["object", "array", "string"], "properties": {"id": {"type": ["string", "number"], "maxLength": 80}}}
HANDLERS = """

@hook.on("plain", "*", filter={"body": {"data.n": {"gt": 1}}}, order_by="data.key")
async def looks(event: Event, tx: Transaction) -> None:
    raise AssertionError

@hook.on("looked", "*", order_by="data.key")
async def orders(event: Event, tx: Transaction) -> None:
    raise AssertionError
"""


@pytest.mark.parametrize("text", [READ[0], READ[-1]])
def test_a_text_within_is_a_document(text: bytes):
    assert parse(within(text)) is not UNREADABLE


def test_there_are_three_hundred_texts():
    assert len(READ) > 100
    assert len(NOT_READ) > 200
    assert len(EITHER) > 20


def test_only_valid_json_is_parsed():
    assert [text[:60] for text in READ if parse(text) is UNREADABLE] == []
    assert [text[:60] for text in NOT_READ if parse(text) is not UNREADABLE] == []


def test_ambiguous_json_never_raises():
    for text in EITHER:
        parse(text)
        parse(within(text))


@pytest.mark.own_process
def test_mutant_a_trusting_reader_raises():
    """The mutant: what any reader of JSON does with the same texts."""
    raised = {type(error) for error in map(_raised_by, TEXTS) if error is not None}
    assert {json.JSONDecodeError, RecursionError, UnicodeDecodeError} <= raised


def _raised_by(text: bytes) -> Exception | None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return error
    return None


def test_both_json_readers_accept_the_same_bodies():
    extract = FieldExtractor(["id", "data.key"]).extract
    bodies = [*TEXTS, *map(within, TEXTS)]
    assert [body[:80] for body in bodies if (extract(body) is None) is not (parse(body) is UNREADABLE)] == []


# Through a gateway and PostgreSQL.


@pytest.fixture(scope="module")
def gateway(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:  # noqa: F811
    running = shared_boathook(roles="gateway", extra=SOURCES, start=False)
    (running.folder / "shape.json").write_text(json.dumps(SHAPE))
    with (running.folder / "shop.py").open("a") as shop:
        shop.write(HANDLERS)
    return running.start()


def sent(running: BoathookProcess, source: str, bodies: Iterable[bytes]) -> Iterator[tuple[bytes, int, dict[str, Any]]]:
    """Send bodies with their proof, one after the other; yield each with its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=300)
    for body in bodies:
        proof = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        connection.request("POST", f"/in/{source}", body, {"x-signature": proof, "content-type": "application/json"})
        answer = connection.getresponse()
        yield body, answer.status, json.loads(answer.read())
    connection.close()


def stored(running: BoathookProcess, source: str) -> dict[str, bytes]:
    """Return the bodies of a source's events, by id."""
    with psycopg.connect(running.database_url) as connection:
        rows = connection.execute("select id, body from boathook.event where source = %s", [source]).fetchall()
    return {ids.show(ids.EVENT, id): body for id, body in rows}


BODIES = (*TEXTS, *map(within, TEXTS))


def changed(bodies: Iterable[bytes], come_back: Iterable[bytes]) -> list[bytes]:
    """Return the bodies that were stored changed, truncated."""
    return [body[:60] for body, back in zip(bodies, come_back, strict=True) if body != back]


def test_every_signed_body_is_stored_byte_for_byte(gateway: BoathookProcess):
    answers = list(sent(gateway, "plain", BODIES))
    assert {body[:60]: status for body, status, _ in answers if status != 200} == {}
    found = stored(gateway, "plain")
    assert changed(BODIES, (found[told["event_id"]] for _, _, told in answers)) == []


def test_mutant_reserialized_bodies_differ():
    anew = [body if parse(body) is UNREADABLE else json.dumps(parse(body)).encode() for body in READ]
    assert len(changed(READ, anew)) > len(READ) / 3


@pytest.mark.parametrize("source", sampled(["looked", "shaped"], keep=1))
def test_reading_fields_of_any_body_causes_no_server_error(gateway: BoathookProcess, source: str):
    answers = list(sent(gateway, source, BODIES))
    assert {body[:60]: status for body, status, _ in answers if status not in {200, 400}} == {}
    found = stored(gateway, source)
    told = [(body, answer["event_id"]) for body, status, answer in answers if status == 200 and not answer["duplicate"]]
    assert len(told) > 100
    assert changed((body for body, _ in told), (found[id] for _, id in told)) == []


@pytest.mark.own_process
def test_mutant_with_a_trusting_reader_routes_would_stumble():
    order = Route(recipient="handler:x", app="shop:hook", source="looked", order_by="data.key")
    stumbled = 0
    router = Router([order], 1, json.loads)
    for body in BODIES:
        try:
            router.route(source="looked", application=None, type="a", headers={}, body=body)
        except (ValueError, RecursionError):
            stumbled += 1
    assert stumbled > 200
