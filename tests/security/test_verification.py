"""Attackers with captured requests but no secret, who resend them rewritten."""

import base64
import hmac
import json
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from urllib.parse import parse_qsl, quote, urlencode

import pytest
from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.filters import Router
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.model import ProofStrength
from boathook.domain.verification import BatchItem, Challenge, Rejected, Request, Verdict, Verified
from boathook.handlers.event import Event
from boathook.ingest.event_builder import EventBuilder
from boathook.providers import cloud, payments
from boathook.providers.request_reader import read_form, read_pairs
from boathook.testing import signed_request
from boathook.verification import handshakes
from boathook.verification import verifier as verify
from boathook.verification.check import signature_headers
from boathook.verification.library import verify as verify_anywhere
from boathook.verification.tokens import ValidProof
from boathook.verification.verifier import Verifier
from tests.providers.source_factory import NOW, all_sources
from tests.support import too_dear

SOURCES_BY_LABEL = {provider_source.label: provider_source for provider_source in all_sources()}
Rewrite = Callable[[Request], Request]


def genuine(label: str, word: str = "sample") -> tuple[Verifier, Request]:
    provider_source = SOURCES_BY_LABEL[label]
    return provider_source.verifier(), provider_source.request(provider_source.sign_sample(word))


def taken(verdict: Verdict) -> Verified:
    assert isinstance(verdict, Verified), verdict
    return verdict


def is_another_event(first: Verified, second: Verdict) -> bool:
    """Whether the database would store the second too."""
    if not isinstance(second, Verified):
        return False
    if second.items or first.items:
        return not _keys(second.items) or not _keys(second.items) <= _keys(first.items)
    is_known = second.dedup_key == first.dedup_key
    return not is_known and (second.replay_material is None or second.replay_material != first.replay_material)


def _keys(items: tuple[BatchItem, ...]) -> set[str]:
    return {item.dedup_key for item in items}


# Every provider: whatever is not signed may change, and it is still the same event.


def _with_body(write: Callable[[bytes], bytes]) -> Rewrite:
    return lambda request: replace(request, body=write(request.body))


def _json(change: Callable[[object], object], **how: object) -> Rewrite:
    def write(body: bytes) -> bytes:
        document = parse(body)
        return body if document is UNREADABLE else json.dumps(change(document), **how).encode()

    return _with_body(write)


def _form(change: Callable[[list[tuple[str, str]]], list[tuple[str, str]]]) -> Rewrite:
    def rewrite(request: Request) -> Request:
        if request.method == "GET":
            return replace(request, query=urlencode(change(parse_qsl(request.query, keep_blank_values=True))))
        if parse(request.body) is not UNREADABLE:
            return request
        pairs = parse_qsl(request.body.decode(), keep_blank_values=True)
        return replace(request, body=urlencode(change(pairs)).encode())

    return rewrite


def _scalars(change: Callable[[object], object]) -> Rewrite:
    def walk(value: object) -> object:
        if isinstance(value, dict):
            return {name: walk(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return list(map(walk, value))
        return change(value)

    return _json(walk)


def _retype(value: object) -> object:
    match value:
        case "true" | "false":
            return value == "true"
        case bool():
            return str(value).lower()
        case str() if value.isdigit() and str(int(value)) == value:
            return int(value)
        case int():
            return str(value)
    return value


def _unsigned_header(verifier: Verifier, request: Request, name: str, value: str | None) -> Request:
    headers = {key: text for key, text in request.headers.items() if key != name}
    return replace(request, headers=headers if value is None else headers | {name: value})


REWRITES: dict[str, Rewrite] = {
    "spaces": _json(lambda document: document, indent=2),
    "sorted": _json(lambda document: document, sort_keys=True),
    "more": _json(lambda document: document | {"zzz": {"a": 1}} if isinstance(document, dict) else document),
    "listed twice": _json(lambda document: document * 2 if isinstance(document, list) else document),
    "other kinds": _scalars(_retype),
    "upper case": _scalars(lambda value: value.upper() if isinstance(value, str) else value),
    "spaces around": _scalars(lambda value: f" {value}" if isinstance(value, str) else value),
    "commas behind": _scalars(lambda value: f"{value},x" if isinstance(value, str) else value),
    "a mark before": _with_body(lambda body: b"\xef\xbb\xbf" + body),
    "a newline behind": _with_body(lambda body: body + b"\n"),
    "no newline": _with_body(lambda body: body.removesuffix(b"%0A")),
    "fields reversed": _form(lambda pairs: pairs[::-1]),
    "fields twice": _form(lambda pairs: [*pairs, *pairs]),
    "first field twice": _form(lambda pairs: [pairs[0], *pairs]),
    "another field": _form(lambda pairs: [*pairs, ("zzz", "1")]),
    "another empty field": _form(lambda pairs: [*pairs, ("zzz", "")]),
    "names longer": _form(lambda pairs: [(name + value[:2], value[2:]) for name, value in pairs]),
    "names shorter": _form(lambda pairs: [(name[:-1], name[-1:] + value) for name, value in pairs]),
    "other escapes": _form(lambda pairs: [(name, value) for name, value in pairs if value]),
    "a query": lambda request: replace(request, query="a=b", url=request.url.partition("?")[0] + "?a=b"),
    "a type": lambda request: replace(request, headers=dict(request.headers) | {"content-type": "text/plain"}),
}  # fmt: skip

KNOWN: dict[str, str] = {
    "mollie": "nothing is signed",
    "suno": "what is signed is also signed of other events: task and second",
    "jira-connect": "what is signed is also signed of other events: path and second",
    "dropbox": "the same bytes tell of another change next time",
}
PROVEN = [
    label
    for label, provider_source in SOURCES_BY_LABEL.items()
    if provider_source.recipe.grade in {ProofStrength.BODY, ProofStrength.METADATA}
]
SAFE = [label for label in PROVEN if label not in KNOWN]


@pytest.mark.parametrize("label", SAFE)
def test_a_rewritten_request_is_the_same_event(label: str):
    verifier, request = genuine(label)
    first = taken(verifier.verify(request, NOW))
    for name, rewrite in REWRITES.items():
        second = verifier.verify(rewrite(request), NOW)
        assert not is_another_event(first, second), (name, second)


@pytest.mark.parametrize("label", SAFE)
def test_other_headers_make_no_other_event(label: str):
    verifier, request = genuine(label)
    first = taken(verifier.verify(request, NOW))
    recipe = verifier.recipe
    named = {*verifier.reverify_headers, *signature_headers(recipe.proof), "webhook-id", "svix-id", "idempotency-key"}
    for header in sorted(named):
        if recipe.type.is_part_of_replay_key and header in {"x-shopify-topic", "x-wc-webhook-topic", "x-netlify-event"}:
            continue  # one body holds several events there, and the signature does not say which
        for value in (None, "other", request.headers.get(header, "") + ", other", "0"):
            second = verifier.verify(_unsigned_header(verifier, request, header, value), NOW)
            assert not is_another_event(first, second), (header, value, second)


# Single senders.


def only(label: str, **values: object) -> tuple[Verified, Verdict]:
    """The facts of a genuine JSON request, and of the same with some values replaced."""
    verifier, request = genuine(label)
    document = json.loads(request.body)
    other = replace(request, body=json.dumps({**document, **values}).encode())
    return taken(verifier.verify(request, NOW)), verifier.verify(other, NOW)


@pytest.mark.parametrize("label", ["standard-webhooks", "resend", "clerk"])
@pytest.mark.parametrize(("here", "there"), [("webhook", "svix"), ("svix", "webhook")])
def test_an_id_besides_the_signed_one_is_ignored(label: str, here: str, there: str):
    verifier, request = genuine(label)
    signed = {name.replace("webhook-", f"{here}-").replace("svix-", f"{here}-"): text
              for name, text in request.headers.items()}  # fmt: skip
    first = taken(verifier.verify(replace(request, headers=signed), NOW))
    second = taken(verifier.verify(replace(request, headers=signed | {f"{there}-id": "msg_chosen"}), NOW))
    assert first.dedup_key == second.dedup_key == "msg_boathook-sample"


def test_without_the_signed_id_another_id_is_used(monkeypatch: pytest.MonkeyPatch):
    verifier, request = genuine("resend")
    signed = {name.replace("svix-", "webhook-"): text for name, text in request.headers.items()}
    check = verifier.check.check
    monkeypatch.setattr(verifier.check, "check", lambda *args: ValidProof(check(*args).sent_at))
    forged = taken(verifier.verify(replace(request, headers=signed | {"svix-id": "msg_chosen"}), NOW))
    assert forged.dedup_key == "msg_chosen"


def tbank_token(change: Callable[[str], str]) -> tuple[Verified, Verdict]:
    _, request = genuine("t-bank")
    return only("t-bank", Token=change(json.loads(request.body)["Token"]))


@pytest.mark.parametrize("change", [str.upper, "{},x".format, " {}".format])
def test_a_rewritten_tbank_request_is_the_same_event(change: Callable[[str], str]):
    first, second = tbank_token(change)
    assert isinstance(second, Verified)
    assert not is_another_event(first, second)


def test_tbank_values_under_other_names_are_the_same_event():
    verifier, request = genuine("t-bank")
    first = taken(verifier.verify(request, NOW))
    second = taken(verifier.verify(replace(request, body=request.body.replace(b'"Status"', b'"Statut"')), NOW))
    assert first.dedup_key != second.dedup_key
    assert not is_another_event(first, second)
    assert SOURCES_BY_LABEL["t-bank"].secret.encode() not in (first.replay_material or b"")


SNS_TRICKS = {
    "the id moved into the message": {"Message": '{"a":1}\nMessageId\nboathook-sample', "MessageId": 777},
    "the same with no id": {"Message": '{"a":1}\nMessageId\nboathook-sample', "MessageId": None},
    "a subject with the id in it": {"Subject": "A sample", "MessageId": "boathook-sample\nSubject\nA sample"},
}


@pytest.mark.parametrize("trick", SNS_TRICKS)
def test_a_message_of_amazons_is_not_cut_in_another_way(trick: str):
    first, second = only("sns", **SNS_TRICKS[trick])
    assert not is_another_event(first, second)
    assert isinstance(second, Rejected)


def test_an_id_within_an_sns_message_cannot_be_reused():
    provider_source = SOURCES_BY_LABEL["sns"]
    document = json.loads(provider_source.recipe.sample.body) | {"Message": "a\nMessageId\nchosen\nSubject\nb"}
    sent = signed_request(
        "sns", provider_source.secret, json.dumps(document).encode(), timestamp=NOW, **provider_source.settings
    )
    verifier, request = provider_source.verifier(), provider_source.request(sent)
    assert taken(verifier.verify(request, NOW)).dedup_key == "boathook-sample"
    signed = json.loads(request.body)
    cut = {"Message": "a", "MessageId": "chosen", "Subject": "b\nMessageId\nboathook-sample\nSubject\nA sample"}
    assert isinstance(verifier.verify(replace(request, body=json.dumps(signed | cut).encode()), NOW), Rejected)


def adyen(reference: str, forge: Callable[[dict[str, object]], None]) -> tuple[Verified, Verdict]:
    provider_source = SOURCES_BY_LABEL["adyen"]
    document = json.loads(provider_source.recipe.sample.body)
    document["notificationItems"][0]["NotificationRequestItem"]["merchantReference"] = reference
    sent = signed_request("adyen", provider_source.secret, json.dumps(document).encode(), timestamp=NOW)
    verifier, request = provider_source.verifier(), provider_source.request(sent)
    signed = json.loads(request.body)
    forge(signed["notificationItems"][0]["NotificationRequestItem"])
    other = replace(request, body=json.dumps(signed).encode())
    return taken(verifier.verify(request, NOW)), verifier.verify(other, NOW)


def test_an_item_of_adyens_is_not_cut_in_another_way():
    def shift(item: dict[str, object]) -> None:
        item |= {"pspReference": "boathook-sample:", "originalReference": "SampleMerchant",
                 "merchantAccountCode": "order", "merchantReference": "1"}  # fmt: skip

    first, second = adyen("order:1", shift)
    assert not is_another_event(first, second)
    first, second = adyen("order:1", lambda item: item.update(success=True))
    assert not is_another_event(first, second)


def test_with_colons_allowed_adyen_items_can_be_split_differently(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(payments, "_is_plain", lambda _value: True)
    first, second = adyen("order:1", lambda item: item.update(success=True))
    assert is_another_event(first, second)


def test_equal_bodies_with_signed_timestamps_are_two_events():
    provider_source = SOURCES_BY_LABEL["zendesk"]
    verifier, body = provider_source.verifier(), b'{"ticket":1}'

    def notice(name: str, at: float) -> Verified:
        headers = {"x-zendesk-webhook-invocation-id": name}
        sent = signed_request(
            "zendesk", provider_source.secret, body, url=provider_source.url, headers=headers, timestamp=at
        )
        return taken(verifier.verify(provider_source.request(sent), NOW))

    first, second, copied = notice("a", NOW), notice("b", NOW + 5), notice("c", NOW)
    assert is_another_event(first, second)
    assert not is_another_event(first, copied)


# Events by GET.


def cloudpayments(query: str) -> Verified:
    provider_source = SOURCES_BY_LABEL["cloudpayments-get"]
    signature = base64.b64encode(hmac.digest(provider_source.secret.encode(), query.encode(), "sha256")).decode()
    request = Request(
        method="GET",
        url=f"{provider_source.url}?{query}",
        path="/in/pay",
        query=query,
        headers={"content-hmac": signature},
        body=b"whatever",
        client="192.0.2.1",
    )
    return taken(provider_source.verifier().verify(request, NOW))


def test_events_by_get_are_distinguished_and_stored_by_query():
    one, other = cloudpayments("TransactionId=1&Amount=5"), cloudpayments("TransactionId=2&Amount=5")
    assert is_another_event(one, other)
    assert not is_another_event(one, cloudpayments("TransactionId=1&Amount=5"))

    async def nothing() -> Router:
        raise AssertionError

    event = EventBuilder(Router((), 0), nothing).event("pay", one, b"whatever", "text/plain", NOW)
    assert (event.body, event.content_type) == (b"TransactionId=1&Amount=5", "application/x-www-form-urlencoded")


def test_a_token_in_the_query_is_not_stored_with_it():
    spec = verify.SourceSpec(
        name="t",
        provider="token",
        secrets=("s3cret",),
        options={"query": "token"},
        methods=frozenset({"GET", "POST"}),
    )
    query = "a=1&t%6fken=s3cret&b=2"
    request = Request(method="GET", url="", path="/in/t", query=query, headers={}, body=b"", client="")
    assert taken(Verifier(spec).verify(request, NOW)).query == b"a=1&b=2"
    assert taken(Verifier(spec).verify(replace(request, method="POST"), NOW)).query is None


# Handshakes.


HIDDEN = {
    "microsoft-graph": lambda request: replace(request, query="validationToken=a"),
    "tilda": lambda request: replace(request, body=request.body + b"&test=test"),
}


@pytest.mark.parametrize("label", HIDDEN)
def test_a_signed_event_resembling_a_challenge_is_accepted(label: str):
    verifier, request = genuine(label)
    asked = HIDDEN[label](request)
    assert isinstance(verifier.verify(asked, NOW), Verified)
    forged = replace(asked, headers={}, body=asked.body.replace(SOURCES_BY_LABEL[label].secret.encode(), b"wrong"))
    assert isinstance(verifier.verify(forged, NOW), Rejected)


@pytest.mark.parametrize("label", sorted(SOURCES_BY_LABEL))
def test_no_genuine_event_is_lost_to_a_question_in_its_query(label: str):
    verifier, request = genuine(label)
    words = {"validationToken": "a", "hub.mode": "subscribe", "hub.challenge": "a", "hub.verify_token": "a",
             "crc_token": "a", "challenge": "a", "bt_challenge": "a" * 20, "type": "url_verification"}  # fmt: skip
    query = "&".join(filter(None, (request.query, urlencode(words))))
    assert not isinstance(verifier.verify(replace(request, query=query), NOW), Challenge)


# What costs much.


LARGE = 60_000


def floods() -> Iterator[tuple[str, bytes]]:
    def fill(head: bytes, piece: bytes, tail: bytes = b"") -> bytes:
        return head + piece * ((LARGE - len(head) - len(tail)) // len(piece)) + tail

    for label, provider_source in SOURCES_BY_LABEL.items():
        words = parse(provider_source.recipe.sample.body)
        key = json.dumps(next(iter(words))).encode() if isinstance(words, dict) and words else b'"a"'
        yield label, fill(b"{" + key + b":[", b"{},", b"1]}")
        yield label, fill(b"{" + key + b":[", b"[],", b"1]}")
        yield label, fill(b"{" + key + b':"', b'[\\"', b'"}')
        yield label, fill(b"[", b"{},", b"{}]")
        yield label, fill(b"", b"[")
        yield label, fill(b'{"a":', b'{"a":')
        yield label, fill(b"[", b"9" * 4_300 + b",", b"9]")
        yield label, fill(b"bt_payload=", b"%41")
        yield label, fill(b"a=", "é%41".encode())
        yield label, fill(b"", b"a=b&")
        yield label, fill(b"{", b'"a":"\\ud800",', b'"b":1}')


@pytest.mark.extended("is judged by the clock")
def test_no_forged_body_is_dearer_than_reading_it():
    dear = []
    for label, body in floods():
        verifier, request = genuine(label)
        # Only so much as reading JSON takes anyhow, some forty nanoseconds a byte, as some proofs lie inside it.
        request = replace(request, body=body)
        if too_dear(partial(verifier.verify, request, NOW), most=60) is not None:
            dear.append((label, body[:20]))
    assert not dear


def test_a_long_body_is_not_searched_for_questions():
    verifier, request = genuine("slack")
    question = replace(request, headers={}, body=b"ssl_check=1")
    assert isinstance(verifier.verify(question, NOW), Challenge)
    long = replace(question, body=b"ssl_check=1&a=" + b"%41" * handshakes.MAX_UNPROVEN_BODY)
    assert isinstance(verifier.verify(long, NOW), Rejected)


# Readers.


@pytest.mark.parametrize("body", [b"a=%e2%82%ac&b=%&c=%zz&d", b"a=1&a=2&&=3&+x+=%2B", "é=%C3%A9".encode(), b""])
def test_forms_are_read_as_python_reads_them(body: bytes):
    assert read_form(body) == parse_qsl(body.decode(), keep_blank_values=True, errors="replace")
    assert read_pairs(quote(body)) == [] if not body else read_pairs(quote(body))


@pytest.mark.parametrize("body", [b'[{"a":1}]', b' \r\n{"a":"&b=c"}', b"\xef\xbb\xbf[1]"])
def test_json_is_not_read_as_a_form(body: bytes):
    assert parse(body) is not UNREADABLE
    assert read_form(body) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_json_is_utf_8(encoding: str):
    assert parse('{"a":1}'.encode(encoding)) is UNREADABLE


def test_an_address_that_cannot_be_read_raises_nothing():
    result = verify_anywhere("github", "secret", {}, b"{}", url="https://[evil/in/a?b=c")
    assert result.outcome == "rejected"


def test_the_confirmation_address_of_amazon_is_of_amazon():
    for host in ("sns.eu-west-1.amazonaws.com@evil.example", "sns.eu-west-1.amazonaws.com.evil.example",
                 "sns.eu-west-1.amazonaws.com:444", "SNS.eu-west-1.amazonaws.com", "sns.s3-eu-west-1.amazonaws.com",
                 "sns。eu-west-1.amazonaws.com", "sns.eu-west-1.amazonaws.com\\@evil.example"):  # fmt: skip
        assert not cloud.SNS_CERTIFICATE.fullmatch(f"https://{host}/SimpleNotificationService-{'0' * 16}.pem")
    assert not cloud.SNS_CERTIFICATE.fullmatch(
        f"https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-{'0' * 16}.pem\n"
    )


CUTS = {"{id}{body}": False, "{timestamp}.{id}.{body}": False, "{body}.{id}": False, "{id}.{timestamp}.{body}": True}


@pytest.mark.parametrize("template", CUTS)
def test_an_ambiguously_signed_id_is_not_trusted(template: str):
    options = {"template": template, "id_header": "x-id"} | (
        {"timestamp_header": "x-at"} if "{time" in template else {}
    )
    spec = verify.SourceSpec(name="t", provider="hmac", secrets=("s",), options=options)
    moment, name, body = str(int(NOW)), "evt", b'{"a":"1.2"}'

    def judge(name: str, body: bytes) -> Verdict:
        request = Request(method="POST", url="", path="/", query="", body=body, client="",
                          headers={"x-id": name, "x-at": moment, "x-signature": signature})  # fmt: skip
        return Verifier(spec).verify(request, NOW)

    signed = template.format(id=name, timestamp=moment, body=body.decode())
    signature = hmac.digest(b"s", signed.encode(), "sha256").hex()
    first = taken(judge(name, body))
    assert (first.replay_material is None) is CUTS[template]
    for other, rest in (("evt{", body[1:]), ('2"}.evt', b'{"a":"1'), ('evt.{"a":"1', b'2"}')):
        assert not is_another_event(first, judge(other, rest))


@pytest.mark.parametrize("item", [b'"\\ud83d"', b"1e400", b"1" * 5_000])
def test_one_odd_item_does_not_keep_a_handler_from_the_others(item: bytes):
    body = b'[{"id":"1","text":%s},{"id":"2"}]' % item
    assert parse(body) is not UNREADABLE
    event = SimpleNamespace(body=body, id=None, content_type="")
    assert Event.json.func(event)[1] == {"id": "2"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["text/html\r\nset-cookie: a=b", "text/html\n", "html"])
def test_a_reply_content_type_cannot_inject_headers(text: str):
    options = {"header": "x-token", "reply_body": "ok", "reply_content_type": text}
    with pytest.raises(ConfigError, match=r"sources\.t\.reply_content_type"):
        Verifier(verify.SourceSpec(name="t", provider="token", secrets=("s",), options=options))
