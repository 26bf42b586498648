"""Records that hold secrets: neither `repr` nor `str` shows them."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import asdict, replace

from boathook.api.publish import _PlainRequest
from boathook.cli.event_feed import GatewayAddress
from boathook.cli.forwarding import SigningOptions
from boathook.domain.redaction import RedactedStruct
from boathook.domain.verification import SourceSpec
from boathook.server.mounts import _AuthorizedRequest
from boathook.service.oidc import AuthorizationRequest
from boathook.service.operators import NewSession
from boathook.service.svix_import.endpoints import Options, _DesiredEndpoint
from boathook.service.svix_import.reader import RemoteEndpoint
from boathook.testing.server_process import ServerProcess
from boathook.verification.provider_keys import Keys

MARKER = "marker-c0ffee"
SHOWN = "shown-value"
UNUSED = cast("Any", None)
RECORDS: tuple[Callable[[], object], ...] = (
    lambda: SourceSpec(name=SHOWN, provider="stripe", secrets=(MARKER,)),
    lambda: SigningOptions(MARKER, SHOWN, {}),
    lambda: GatewayAddress(SHOWN, MARKER, UNUSED),
    lambda: Options(actor=SHOWN, secrets={"ep_1": MARKER}),
    lambda: RemoteEndpoint(wire={"id": SHOWN}, secret=MARKER, headers={"authorization": MARKER}),
    lambda: _DesiredEndpoint(UNUSED, (SHOWN,), {"authorization": MARKER}, MARKER),
    lambda: Keys(MARKER, SHOWN),
    lambda: NewSession(cast("Any", SHOWN), MARKER),
    lambda: AuthorizationRequest(state=MARKER, nonce=MARKER, verifier=MARKER, wanted=SHOWN),
    lambda: _PlainRequest(SHOWN, MARKER, "/", ""),
    lambda: ServerProcess(UNUSED, {"stripe": MARKER}, SHOWN, UNUSED, UNUSED),
)


@pytest.mark.parametrize("make", RECORDS, ids=lambda make: type(make()).__name__)
def test_a_record_shows_its_fields_without_its_secrets(make: Callable[[], object]):
    record = make()
    for text in (repr(record), str(record), f"{record}", f"{[record]}"):
        assert text.strip("[]").startswith(f"{type(record).__name__}(")
        assert MARKER not in text
        assert SHOWN in text


def test_an_authorized_request_shows_none_of_its_headers():
    scope = {"headers": [(b"authorization", MARKER.encode())]}
    assert repr(_AuthorizedRequest(scope, {"authorization": MARKER})) == "_AuthorizedRequest()"


def test_rich_shows_no_secret_either():
    assert SourceSpec(name="a", provider="stripe", secrets=(MARKER,)).__rich_repr__()[:2] == [
        ("name", "a"), ("provider", "stripe"),
    ]  # fmt: skip
    assert MARKER not in str(SourceSpec(name="a", provider="stripe", secrets=(MARKER,)).__rich_repr__())


def test_each_hidden_field_exists():
    classes = RedactedStruct.__subclasses__()
    assert SourceSpec in classes
    assert [one for one in classes if not one.hidden_fields or one.hidden_fields - set(one.__struct_fields__)] == []


def test_a_hidden_field_is_a_field_like_others():
    spec = replace(SourceSpec(name="a", provider="stripe", secrets=(MARKER,)), name="b")
    assert spec.secrets == (MARKER,)
    assert asdict(spec)["secrets"] == (MARKER,)
    assert spec != replace(spec, secrets=())


def test_mutant_without_hidden_fields_the_secret_is_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SigningOptions, "hidden_fields", frozenset())
    assert MARKER in repr(SigningOptions(MARKER, SHOWN, {}))
