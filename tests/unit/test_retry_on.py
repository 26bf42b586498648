"""Which exceptions of a handler are retried, and whose failure each is, with the errors of real HTTP clients."""

import asyncio
import random
import socket
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import msgspec
import pydantic
import pytest
import requests

from boathook import HTTP_DEFAULTS, Boathook, Breaker, ConfigError
from boathook.domain.errors import DatabaseUnavailable, FetchFailed, HandlerMisuse, HandlerTimeout
from boathook.domain.policy import Failure, is_failure_of
from boathook.handlers.handler import Handler
from boathook.handlers.runner import make_failure
from boathook.http_client.client import Client
from boathook.testing import StubDependency
from tests.unit.receivers import outbound

HOST = "127.0.0.1"
TIMEOUT_S = 0.05

Call = Callable[[str, float], Awaitable[object]]


async def call_httpx(url: str, timeout_s: float) -> object:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(url, timeout=timeout_s)).raise_for_status()


async def call_requests(url: str, timeout_s: float) -> object:
    session = requests.Session()
    session.trust_env = False
    return await asyncio.to_thread(lambda: session.get(url, timeout=timeout_s).raise_for_status())


async def call_aiohttp(url: str, timeout_s: float) -> object:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout_s), raise_for_status=True) as session,
        session.get(url) as response,
    ):
        return await response.read()


async def call_urllib(url: str, timeout_s: float) -> object:
    def get() -> bytes:
        try:
            with urllib.request.urlopen(url, timeout=timeout_s) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            error.close()
            raise

    return await asyncio.to_thread(get)


async def call_hook(url: str, timeout_s: float) -> object:
    client = Client(outbound())
    try:
        response = await client.request("GET", url, timeout_s=timeout_s)
        response.raise_for_status()
    finally:
        client.close()
    return response


CLIENTS: dict[str, Call] = {
    "httpx": call_httpx,
    "requests": call_requests,
    "aiohttp": call_aiohttp,
    "urllib": call_urllib,
    "hook.http": call_hook,
}


@pytest.fixture
def stub() -> Iterator[StubDependency]:
    with StubDependency() as server:
        yield server


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def failing(call: Call, url: str, timeout_s: float = 30.0) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 each client has its own
        await call(url, timeout_s)
    return caught.value


def handler(**options: Any) -> Handler:
    hook = Boathook()

    @hook.on("shop", name="charge", **options)
    async def charge(_event: Any) -> None:
        pass

    return hook.handlers["charge"]


def failure(error: BaseException, **options: Any) -> Failure:
    return make_failure(error, handler(**({"retry_on": HTTP_DEFAULTS} | options)))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599])
async def test_a_busy_or_broken_server_is_asked_again(stub, client, status):
    stub.answer(status)
    assert not failure(await failing(CLIENTS[client], stub.url)).is_final


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 410, 422, 425, 428, 451])
async def test_a_refusal_is_final(stub, client, status):
    stub.answer(status)
    assert failure(await failing(CLIENTS[client], stub.url)).is_final


async def test_a_slow_server_is_asked_again(stub, client):
    stub.hold()
    assert not failure(await failing(CLIENTS[client], stub.url, TIMEOUT_S)).is_final


async def test_a_broken_connection_is_made_again(stub, client):
    stub.drop()
    assert not failure(await failing(CLIENTS[client], stub.url)).is_final


async def test_a_refused_connection_is_made_again(client):
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        url = f"http://{HOST}:{unused.getsockname()[1]}"
        error = await failing(CLIENTS[client], url)
    assert not failure(error).is_final


@pytest.mark.parametrize("client", ["httpx", "requests", "aiohttp", "hook.http"])
async def test_the_host_of_the_failed_request_is_the_dependency(stub, client):
    stub.answer(503)
    assert failure(await failing(CLIENTS[client], stub.url)).dependency == HOST


@pytest.mark.parametrize("client", ["httpx", "requests", "hook.http"])
async def test_a_timeout_has_the_host_of_its_request(stub, client):
    stub.hold()
    assert failure(await failing(CLIENTS[client], stub.url, TIMEOUT_S)).dependency == HOST


@pytest.mark.parametrize("client", ["httpx", "requests", "aiohttp", "urllib", "hook.http"])
@pytest.mark.parametrize("status", [429, 503])
async def test_the_delay_that_a_response_requests_is_known(stub, client, status):
    stub.answer(status, headers={"Retry-After": "120"})
    assert failure(await failing(CLIENTS[client], stub.url)).retry_after_s == 120


async def test_a_date_is_such_a_delay(stub):
    stub.answer(503, headers={"Retry-After": formatdate(4_000_000_000, usegmt=True)})
    delay = failure(await failing(call_httpx, stub.url)).retry_after_s
    assert delay is not None
    assert delay > 1_000_000


@pytest.mark.parametrize("text", ["soon", "", "-5", "inf", "1e999"])
async def test_an_unreadable_delay_is_none(stub, text):
    stub.answer(503, headers={"Retry-After": text})
    assert failure(await failing(call_httpx, stub.url)).retry_after_s is None


async def test_a_refusal_requests_no_delay(stub):
    stub.answer(403, headers={"Retry-After": "120"})
    assert failure(await failing(call_httpx, stub.url)).retry_after_s is None


class Invoice(pydantic.BaseModel):
    amount: int


class Order(msgspec.Struct):
    amount: int


def invalid(check: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 of several libraries
        check()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        invalid(lambda: Invoice.model_validate({"amount": "none"})),
        invalid(lambda: msgspec.convert({"amount": "none"}, Order)),
        invalid(lambda: msgspec.json.decode(b"{")),
        invalid(lambda: requests.Request("GET", "http://").prepare()),
        invalid(lambda: httpx.URL("http://host:port")),
        httpx.UnsupportedProtocol("ftp"),
        httpx.LocalProtocolError("a header with a line break"),
        httpx.TooManyRedirects("30"),
        requests.TooManyRedirects("30"),
        aiohttp.TooManyRedirects(SimpleNamespace(real_url="http://x"), ()),
        FetchFailed("the address is forbidden", is_final=True),
        KeyError("customer"),
        ValueError("no amount"),
        FileNotFoundError("template.html"),
        ZeroDivisionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_mistake_is_final_with_its_name(error):
    found = failure(error)
    assert found.is_final
    assert found.code == type(error).__name__


def test_without_retry_on_any_exception_is_retried():
    assert not make_failure(ValueError(), handler()).is_final


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), ConnectionResetError(), socket.gaierror(-3, "try again"), OSError(113, "no route to host")],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_the_standard_library_are_retried(error):
    assert not failure(error).is_final


class StatusError(Exception):
    """As the client of some service has it."""

    def __init__(self, status: Any, name: str) -> None:
        super().__init__("the ledger answered")
        if name.startswith("response."):
            self.response = SimpleNamespace(**{name.removeprefix("response."): status})
        else:
            setattr(self, name, status)


@pytest.mark.parametrize("name", ["status_code", "status", "response.status_code", "response.status"])
def test_an_exception_of_ones_own_is_judged_by_its_status(name):
    assert not failure(StatusError(503, name)).is_final
    assert failure(StatusError(404, name)).is_final


@pytest.mark.parametrize("status", [None, "503", 5030, 0, 503.0])
def test_what_is_no_status_is_not_read_as_such(status):
    assert failure(StatusError(status, "status")).is_final


class InvalidAnswer(ValueError):
    status_code = 503


def test_invalid_data_is_final_whatever_its_status():
    assert failure(InvalidAnswer()).is_final


class LedgerBusy(Exception):
    """Raised by code of a user."""


def test_own_classes_and_functions_extend_the_defaults():
    rules = (*HTTP_DEFAULTS, LedgerBusy, lambda error: "again" in str(error))
    assert not failure(LedgerBusy(), retry_on=rules).is_final
    assert not failure(ValueError("try again"), retry_on=rules).is_final
    assert failure(ValueError("never"), retry_on=rules).is_final
    assert not failure(TimeoutError(), retry_on=rules).is_final


def test_a_group_is_retried_if_each_of_its_errors_is():
    assert not failure(ExceptionGroup("calls", [TimeoutError(), ExceptionGroup("", [ConnectionError()])])).is_final
    assert failure(ExceptionGroup("calls", [TimeoutError(), ValueError()])).is_final


def test_final_comes_first():
    options = {"retry_on": (OSError,), "final": (PermissionError,)}
    assert failure(PermissionError(), **options).is_final
    assert not failure(FileNotFoundError(), **options).is_final
    assert failure(ExceptionGroup("", [FileNotFoundError(), PermissionError()]), **options).is_final


def test_the_timeout_of_the_attempt_is_not_an_exception_of_the_handler():
    assert not failure(HandlerTimeout("too long"), retry_on=(LedgerBusy,)).is_final
    assert failure(HandlerTimeout("too long"), retry_on=(LedgerBusy,)).code == "TIMEOUT"


def test_a_broken_contract_is_final_whatever_retry_on_says():
    assert failure(HandlerMisuse("it committed"), retry_on=(Exception,)).is_final


def test_a_function_that_raises_does_not_lose_the_retries():
    found = failure(LedgerBusy("full"), retry_on=(lambda error: error.absent,))
    assert not found.is_final
    assert found.code == "LedgerBusy"
    assert "retry_on raised AttributeError" in found.error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry_on": (TimeoutError,), "final": (OSError,)}, "TimeoutError is in retry_on, but final"),
        ({"retry_on": (OSError,), "final": (OSError,)}, "OSError is in retry_on, but final"),
        ({"retry_on": ()}, "retry_on: write HTTP_DEFAULTS"),
        ({"retry_on": TimeoutError}, "retry_on: write HTTP_DEFAULTS"),
        ({"retry_on": [TimeoutError]}, "retry_on: write HTTP_DEFAULTS"),
        ({"retry_on": (HTTP_DEFAULTS,)}, "retry_on: write HTTP_DEFAULTS"),
        ({"retry_on": (int,)}, "retry_on: write HTTP_DEFAULTS"),
        ({"retry_on": (503,)}, "retry_on: write HTTP_DEFAULTS"),
        ({"retry_on": (asyncio.sleep,)}, "retry_on: write HTTP_DEFAULTS"),
    ],
)
def test_contradictions_and_mistakes_are_refused_at_the_declaration(options, words):
    with pytest.raises(ConfigError, match=words):
        handler(**options)


def test_two_decorators_of_a_handler_agree_on_retry_on():
    hook = Boathook()

    async def charge(_event: Any) -> None:
        pass

    hook.on("shop", "a", retry_on=HTTP_DEFAULTS)(charge)
    hook.on("shop", "b")(charge)
    assert hook.handlers["charge"].retry_on == HTTP_DEFAULTS
    with pytest.raises(ConfigError, match="conflicting retry_on"):
        hook.on("shop", "c", retry_on=(LedgerBusy,))(charge)


class NamedError(Exception):
    dependency = "crm"


CRM = Breaker(dependency="erp", errors=(*HTTP_DEFAULTS, LedgerBusy))


async def test_a_name_that_the_user_gives_comes_before_the_host(stub):
    stub.answer(503)
    error = await failing(call_httpx, stub.url)
    assert failure(error, breaker=CRM).dependency == "erp"
    assert failure(LedgerBusy(), breaker=CRM).dependency == "erp"
    assert failure(NamedError(), breaker=CRM).dependency == "crm"
    assert failure(HandlerTimeout("too long"), breaker=CRM).dependency == "erp"
    assert failure(ValueError(), breaker=CRM).dependency is None
    assert failure(ExceptionGroup("", [ValueError(), error])).dependency == HOST


@pytest.mark.parametrize("name", ["", 5, None, "\x00\ud800", "x" * 1_000])
def test_a_name_is_short_and_can_be_stored(name):
    error = LedgerBusy()
    error.dependency = name  # type: ignore[attr-defined]
    found = failure(error).dependency
    assert found is None or (len(found) <= 253 and found.isprintable())


class Hostile(Exception):
    """Raises wherever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"response", "request", "status", "status_code", "dependency", "headers", "errno", "host"}:
            raise RuntimeError(name)
        return super().__getattribute__(name)


def test_an_exception_that_raises_when_it_is_read_is_a_mistake_like_another():
    assert failure(Hostile()).is_final


def test_a_breaker_takes_functions_and_outlives_one_that_raises():
    assert is_failure_of(CRM, httpx.ConnectError("refused"))
    assert not is_failure_of(CRM, ValueError())
    assert not is_failure_of(Breaker(dependency="crm", errors=(lambda _error: 1 / 0 > 0,)), ValueError())


def test_a_breaker_without_errors_does_not_know_those_of_httpx():
    """Why `errors=HTTP_DEFAULTS` is recommended: no error of httpx is a ConnectionError."""
    assert not is_failure_of(Breaker(dependency="crm"), httpx.ConnectError("refused"))


def test_an_error_of_boathooks_own_database_is_not_judged_by_retry_on():
    """`Runner` takes it for an interruption before; this is about a caller that does not."""
    assert failure(DatabaseUnavailable("away")).is_final


def test_any_nesting_of_groups_is_read():
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(200):
        errors = [chance.choice([TimeoutError(), ConnectionError(), ValueError()]) for _ in range(5)]
        tree: list[Exception] = list(errors)
        while len(tree) > 1:
            size = chance.randint(2, len(tree))
            tree = [*tree[size:], ExceptionGroup("", tree[:size])]
        is_mistaken = any(isinstance(error, ValueError) for error in errors)
        assert failure(tree[0]).is_final is is_mistaken, f"seed {seed}: {tree[0]!r}"
