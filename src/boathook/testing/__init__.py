"""Tests handlers: makes events, runs handlers in a transaction that is rolled back, and signs requests as senders do.

`event` returns an event as a handler gets it. `run` and `run_sync` call the handlers that match it on a session of the
test, and return what they did. The pytest plugin in `boathook.testing.plugin` has the fixtures ``boathook_server``,
``deliver``, ``deliver_swapped`` and ``published``, for tests through HTTP. `StubDependency` is a server for handlers to
call, which can be slow or fail.

`sign` returns the headers for a given body. `signed_request` returns the whole request, also for senders that put the
signature into the body or the URL; without a body, it generates a typical one. For senders that sign with a key pair,
`make_keys` creates one: sign with the private key and configure the source with the public key.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from boathook.testing.events import event
    from boathook.testing.results import DeliverResult, EventResult, HandlerResult, PublishedMessage, RunResult
    from boathook.testing.runs import run, run_sync
    from boathook.testing.server import BoathookServer
    from boathook.testing.stub import StubDependency, StubRequest
    from boathook.verification.provider_keys import Keys
    from boathook.verification.provider_signer import Signed, make_keys, sign, signed_request

__all__ = [
    "BoathookServer",
    "DeliverResult",
    "EventResult",
    "HandlerResult",
    "Keys",
    "PublishedMessage",
    "RunResult",
    "Signed",
    "StubDependency",
    "StubRequest",
    "event",
    "make_keys",
    "run",
    "run_sync",
    "sign",
    "signed_request",
]

_HOMES: typing.Final = {
    "BoathookServer": "testing.server",
    "DeliverResult": "testing.results",
    "EventResult": "testing.results",
    "HandlerResult": "testing.results",
    "Keys": "verification.provider_keys",
    "PublishedMessage": "testing.results",
    "RunResult": "testing.results",
    "Signed": "verification.provider_signer",
    "StubDependency": "testing.stub",
    "StubRequest": "testing.stub",
    "event": "testing.events",
    "make_keys": "verification.provider_signer",
    "run": "testing.runs",
    "run_sync": "testing.runs",
    "sign": "verification.provider_signer",
    "signed_request": "verification.provider_signer",
}

# pytest imports this package for its plugin in every project that has boathook installed. So each name is imported on
# first access, as in `boathook`.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"boathook.{_HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return list(__all__)
