"""Records that hold secrets: neither `repr` nor `str` shows them."""

import dataclasses
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import asdict, replace

import boathook
from boathook.api.publish import PlainRequest
from boathook.domain.redaction import RedactedStruct
from boathook.domain.verification import Request, SourceSpec
from boathook.service.access.identity_provider import AuthorizationRequest
from boathook.service.access.operators import NewSession
from boathook.service.catalogue.endpoints import EndpointChange
from boathook.service.catalogue.values import Result
from boathook.testing.server_process import ServerProcess
from boathook.verification.handshakes import _CompiledHandshake
from boathook.verification.provider_keys import Keys
from boathook_dev.event_feed import GatewayAddress
from boathook_dev.forwarding import SigningOptions
from boathook_svix_import.endpoints import DesiredEndpoint, Options
from boathook_svix_import.reader import RemoteEndpoint

MARKER = "marker-c0ffee"
SHOWN = "shown-value"
UNUSED = cast("Any", None)
RECORDS: tuple[Callable[[], object], ...] = (
    lambda: SourceSpec(name=SHOWN, provider="stripe", secrets=(MARKER,)),
    lambda: SigningOptions(MARKER, SHOWN, {}),
    lambda: GatewayAddress(SHOWN, MARKER, UNUSED),
    lambda: Options(actor=SHOWN, secrets={"ep_1": MARKER}),
    lambda: RemoteEndpoint(wire={"id": SHOWN}, secret=MARKER, headers={"authorization": MARKER}),
    lambda: DesiredEndpoint(UNUSED, (SHOWN,), {"authorization": MARKER}, MARKER),
    lambda: Keys(MARKER, SHOWN),
    lambda: NewSession(cast("Any", SHOWN), MARKER),
    lambda: AuthorizationRequest(state=MARKER, nonce=MARKER, verifier=MARKER, next_path=SHOWN),
    lambda: PlainRequest(SHOWN, MARKER, "/", ""),
    lambda: ServerProcess(UNUSED, {"stripe": MARKER}, SHOWN, UNUSED, UNUSED),
)


@pytest.mark.parametrize("make", RECORDS, ids=lambda make: type(make()).__name__)
def test_a_record_shows_its_fields_without_its_secrets(make: Callable[[], object]):
    record = make()
    for text in (repr(record), str(record), f"{record}", f"{[record]}"):
        assert text.strip("[]").startswith(f"{type(record).__name__}(")
        assert MARKER not in text
        assert SHOWN in text


_NAMES_OF_SECRETS = re.compile(
    r"(?:^|_)(?:secrets?|tokens?|passwords?|privates?|credentials|bearer)$",
)
_NO_SECRETS = {
    ("AccessRule", "is_for_operator_tokens"): "a flag",
    ("CreatedSecret", "secret"): "the secret's id and dates; its text is hidden",
    ("CreatedToken", "token"): "the token's id and dates; its text is hidden",
    ("EndpointStats", "secrets"): "a number",
    ("Handshake", "token"): "where a request has its token",
    ("Rule", "is_secret"): "a flag",
    ("Sample", "secret"): "of a published sample",
    ("SendingHealth", "has_secrets"): "a flag",
    ("Operator", "has_password"): "a flag",
    ("PasswordChanged", "password"): "the word changed",
    ("Setting", "is_secret"): "a flag",
    ("SourceView", "added_secrets"): "a number",
    ("SourceView", "captures_secret"): "a flag",
    ("NewSource", "generate_secret"): "a flag",
    ("SecretNamed", "secret"): "an id",
    ("SecretExpiry", "secret"): "an id",
}


def record_classes() -> Iterator[tuple[type, tuple[str, ...]]]:
    """Yield the classes of records of all modules, with the names of their fields."""
    for found in pkgutil.walk_packages(boathook.__path__, "boathook."):
        if not found.name.endswith("__main__") and ".django." not in found.name:
            importlib.import_module(found.name)
    for name, module in list(sys.modules.items()):
        for one in list(vars(module).values()) if name.startswith("boathook") else ():
            if not isinstance(one, type) or one.__module__ != name:
                continue
            if issubclass(one, msgspec.Struct):
                yield one, one.__struct_fields__
            elif dataclasses.is_dataclass(one):
                yield one, tuple(field.name for field in dataclasses.fields(one))
            elif issubclass(one, tuple) and hasattr(one, "_fields"):
                yield one, one._fields


def make_record(kind: Any, values: dict[str, str | None]) -> object:
    if issubclass(kind, msgspec.Struct):
        return kind(**values)
    if issubclass(kind, tuple):
        return kind._make(values.values())
    record = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


def shown_secrets() -> tuple[set[tuple[str, str]], int]:
    """Return the fields named as secrets that a `repr` shows, and how many such fields there are."""
    shown, count = set(), 0
    for kind, fields in record_classes():
        for name in filter(_NAMES_OF_SECRETS.search, fields):
            count += 1
            values = {field: MARKER if field == name else None for field in fields}
            if MARKER in repr(make_record(kind, values)):
                shown.add((kind.__name__, name))
    return shown, count


def test_no_record_shows_a_field_that_is_named_as_a_secret():
    shown, count = shown_secrets()
    assert shown == _NO_SECRETS.keys()
    assert count > 30


def test_mutant_a_record_that_shows_its_secret_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_CompiledHandshake, "hidden_fields", frozenset())
    assert ("_CompiledHandshake", "token") in shown_secrets()[0]


def test_a_request_shows_neither_its_url_nor_its_headers():
    request = Request(
        method="POST", url=f"https://a.test/?t={MARKER}", path="/in/a", query=f"t={MARKER}",
        headers={"authorization": MARKER}, body=MARKER.encode(), client="192.0.2.1",
    )  # fmt: skip
    assert repr(request) == "Request(method='POST', path='/in/a', client='192.0.2.1')"


def test_rich_shows_no_secret_either():
    assert SourceSpec(name="a", provider="stripe", secrets=(MARKER,)).__rich_repr__()[:2] == [
        ("name", "a"), ("provider", "stripe"),
    ]  # fmt: skip
    assert MARKER not in str(SourceSpec(name="a", provider="stripe", secrets=(MARKER,)).__rich_repr__())


def test_each_hidden_field_exists():
    bases = RedactedStruct.__subclasses__()
    # The base of the results of operations has no fields; what those hide is their own.
    classes = [kind for base in bases for kind in (base.__subclasses__() if base is Result else [base])]
    assert SourceSpec in classes
    classes = [kind for kind in classes if not issubclass(kind, Result) or kind.hidden_fields]
    # `with_changes` replaces a class by one that has the fields of a table, too.
    classes = [kind for kind in classes if getattr(sys.modules[kind.__module__], kind.__name__, kind) is kind]
    classes += [EndpointChange]
    assert [one for one in classes if not one.hidden_fields or one.hidden_fields - set(one.__struct_fields__)] == []


def test_a_hidden_field_is_a_field_like_others():
    spec = replace(SourceSpec(name="a", provider="stripe", secrets=(MARKER,)), name="b")
    assert spec.secrets == (MARKER,)
    assert asdict(spec)["secrets"] == (MARKER,)
    assert spec != replace(spec, secrets=())


def test_mutant_without_hidden_fields_the_secret_is_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SigningOptions, "hidden_fields", frozenset())
    assert MARKER in repr(SigningOptions(MARKER, SHOWN, {}))
