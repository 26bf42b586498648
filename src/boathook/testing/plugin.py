"""The pytest plugin: fixtures for tests of handlers through HTTP.

pytest imports this module in every project that has boathook installed, so whatever the fixtures need is imported when
they are used.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from boathook.testing.results import DeliverResult, PublishedMessage
    from boathook.testing.server import BoathookServer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    parser.addini(
        "boathook_config", "The boathook.toml of boathook_server, relative to the root folder.", default="boathook.toml"
    )
    parser.addini("boathook_app", 'The handlers of boathook_server, "module:attribute"; overrides server.app.')


@pytest.fixture(scope="session")
def boathook_settings() -> Mapping[str, Any]:
    """Settings for boathook_server that take precedence over boathook.toml, as its tables; override it in conftest.py.

    A source needs no keys: ``{"sources": {"stripe": {"provider": "stripe"}}}``. With ``database.url``, the server uses
    that PostgreSQL instead of an embedded one.
    """
    return {}


@pytest.fixture(scope="session")
def boathook_server(pytestconfig: pytest.Config, boathook_settings: Mapping[str, Any]) -> "Iterator[BoathookServer]":
    """A running `boathook serve` with the project's handlers, one for the test session; see `BoathookServer`."""
    from boathook.domain.errors import ConfigError
    from boathook.testing.server import BoathookServer

    file = pytestconfig.rootpath / pytestconfig.getini("boathook_config")
    app = pytestconfig.getini("boathook_app")
    running = BoathookServer.running(
        pytestconfig.rootpath,
        _existing(file, is_required=file.name != "boathook.toml" or not (app or boathook_settings)),
        {**({"server.app": app} if app else {}), **boathook_settings},
    )
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running)
        except ConfigError as error:
            # The mistake is in the project: no line of boathook explains it.
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        yield server


def _existing(file: Path, *, is_required: bool) -> Path | None:
    if file.is_file():
        return file
    if is_required:
        pytest.fail(
            f"boathook_server: there is no {file}; set `boathook_config` to the path of your boathook.toml in pytest's"
            " settings, or override the fixture boathook_settings",
            pytrace=False,
        )
    return None


@pytest.fixture
def deliver(boathook_server: "BoathookServer") -> "Callable[..., DeliverResult]":
    """Sends a signed request to boathook_server and waits for its handlers; see `BoathookServer.deliver`."""
    return boathook_server.deliver


@pytest.fixture
def deliver_swapped(boathook_server: "BoathookServer") -> "Callable[..., tuple[DeliverResult, DeliverResult]]":
    """Sends two requests of one sender to boathook_server, the later first; see `BoathookServer.deliver_swapped`."""
    return boathook_server.deliver_swapped


@pytest.fixture
def published(boathook_server: "BoathookServer") -> "Callable[..., list[PublishedMessage]]":
    """Returns the messages that were published since the test began; see `BoathookServer.published`."""
    began = datetime.now(UTC)

    def since_the_test_began(*, application: str | None = None, type: str | None = None) -> "list[PublishedMessage]":
        return boathook_server.published(application=application, type=type, since=began)

    return since_the_test_began
