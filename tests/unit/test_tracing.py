"""Ids of traces and spans: the same in every process for any sender's header."""

import subprocess
import sys
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook import config
from boathook.config import packages
from boathook.domain import ids
from boathook.domain.errors import ConfigError
from boathook.ingest.sources import source_spec
from boathook.observability import tracer as kernel
from boathook.service.shown_settings import all_settings
from boathook_otel.settings import check
from boathook_otel.spans import Context, Kind, Span, Spans, TracingOptions, read_traceparent, span_id_of
from boathook_otel.tracer import OtelTracer

EVENT = ids.make(1_700_000_000_000, 0x2AAAAAAAAAAAAAAAAAA)
SENDERS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Outlet:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.now: Context | None = None

    def put(self, span: Span) -> None:
        self.spans.append(span)

    def attach(self, context: Context) -> Any:
        before, self.now = self.now, context
        return lambda: setattr(self, "now", before)

    def present(self) -> Context | None:
        return self.now


@pytest.fixture
def tracer():
    made = Spans(TracingOptions(), Outlet())
    kernel.install(OtelTracer(made))
    yield made
    kernel.install(None)


def test_traceparent_is_read_and_written_as_specified():
    context = read_traceparent(SENDERS)
    assert context == Context(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, is_sampled=True)
    assert context.header() == SENDERS
    assert read_traceparent(SENDERS[:-1] + "0").is_sampled is False
    assert read_traceparent("cc" + SENDERS[2:] + "-what-the-future-will-be") == context


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        SENDERS.upper(),
        SENDERS + "-more",
        "ff" + SENDERS[2:],
        SENDERS.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        SENDERS.replace("00f067aa0ba902b7", "0" * 16),
        SENDERS + ", " + SENDERS,
        "\u0660" * 55,
    ],
)
def test_an_invalid_traceparent_starts_a_new_trace(tracer, text):
    entry = tracer.entry(EVENT, text, is_ours=False)
    assert (entry.context.trace_id, entry.parent) == (EVENT.int, None)


@given(st.text())
def test_no_text_makes_the_reader_raise(text):
    read_traceparent(text)


def test_an_event_continues_its_senders_trace(tracer):
    entry = tracer.entry(EVENT, SENDERS, is_ours=False)
    assert entry.parent == read_traceparent(SENDERS)
    assert entry.context.trace_id == entry.parent.trace_id
    assert entry.context.span_id == span_id_of(EVENT, "entry") != entry.parent.span_id


def test_a_sender_decides_nothing_about_sampling_unless_trusted():
    unwanted = SENDERS[:-2] + "00"

    def is_sampled(text: str, **rules: Any) -> bool:
        return Spans(TracingOptions(**rules), Outlet()).entry(EVENT, text, is_ours=False).context.is_sampled

    assert not is_sampled(SENDERS, sample=0)
    assert is_sampled(unwanted, sample=1)
    assert is_sampled(SENDERS, sample=0, trusts=True)
    assert not is_sampled(unwanted, sample=1, trusts=True)


def test_incoming_traces_can_be_ignored_except_boathooks():
    ignoring = Spans(TracingOptions(continues=False), Outlet())
    assert ignoring.entry(EVENT, SENDERS, is_ours=False).context.trace_id == EVENT.int
    assert ignoring.entry(EVENT, SENDERS, is_ours=True).context.trace_id == read_traceparent(SENDERS).trace_id


def test_the_sample_rate_is_respected():
    tracer = Spans(TracingOptions(sample=0.25), Outlet())
    events = [ids.make(1_700_000_000_000 + n, uuid.uuid4().int & ((1 << 74) - 1)) for n in range(4_000)]
    assert 800 < sum(tracer.entry(one, None, is_ours=False).context.is_sampled for one in events) < 1_200


def test_every_attempt_has_its_own_span():
    spans = {span_id_of(EVENT, ordinal, fence) for ordinal in range(20) for fence in range(20)}
    assert len(spans | {span_id_of(EVENT, "entry"), span_id_of(EVENT, "commit")}) == 402


def test_a_message_carries_the_trace_of_its_publisher(tracer):
    assert kernel.add_headers({"a": "b"}) == {"a": "b"}
    with tracer.inside(read_traceparent(SENDERS)):
        assert kernel.add_headers({"a": "b"}) == {"a": "b", "traceparent": SENDERS}
        assert kernel.add_headers({"traceparent": "mine"}) == {"traceparent": "mine"}
    assert kernel.add_headers({}) == {}


def test_unsampled_spans_are_not_exported():
    outlet = Outlet()
    tracer = Spans(TracingOptions(sample=0), outlet)
    entry = tracer.entry(EVENT, None, is_ours=False)
    tracer.record(
        Span(name="x", kind=Kind.SERVER, context=entry.context, parent=None, began_ns=1, ended_ns=2, attributes={})
    )
    assert outlet.spans == []


def test_switched_off_it_changes_nothing_and_imports_nothing():
    assert kernel.current() is None
    headers = {"a": "b"}
    assert kernel.add_headers(headers) is headers
    code = (
        "import sys, boathook.server.child, boathook.server.gateway, boathook.delivery.handler_executor, boathook.delivery.sender, boathook.delivery.http_executor;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


class TestSettings:
    def test_a_missing_extra_is_named(self, monkeypatch):
        monkeypatch.setattr(packages, "find_spec", lambda _: None)
        check(config.load(None))
        check(config.load(None, {"tracing.sample": 0.5}))
        with pytest.raises(ConfigError, match=r"tracing\.endpoint: .*boathook\[otel\]"):
            check(config.load(None, {"tracing.endpoint": "http://127.0.0.1:4318"}))

    def test_a_header_whose_secret_is_missing_is_named(self, tmp_path):
        file = tmp_path / "boathook.toml"
        file.write_text(
            '[tracing]\nendpoint = "http://127.0.0.1:4318"\nheaders = { authorization = "env:NOT_THERE" }\n'
        )
        with pytest.raises(ConfigError, match=r"tracing\.headers\.authorization.*NOT_THERE"):
            check(config.load(file))

    def test_the_headers_of_a_collector_are_shown_as_references_only(self, tmp_path):
        file = tmp_path / "boathook.toml"
        file.write_text('[tracing]\nheaders = { x-key = "http://secret", x-other = "env:NAME" }\n')
        assert all_settings(config.load(file))["tracing"]["headers"] == {"x-key": "(hidden)", "x-other": "env:NAME"}

    def test_traceparent_is_stored_only_if_tracing_uses_it(self):
        def kept(**tracing_settings: str) -> tuple[str, ...]:
            dotted = {f"tracing.{name}": value for name, value in tracing_settings.items()}
            source = {"sources.s": {"provider": "stripe", "secrets": ["x"]}}
            return source_spec(config.load(None, {**dotted, **source}), "s").keep

        assert kept() == ()
        assert kept(endpoint="http://127.0.0.1:4318") == ("traceparent",)
        assert kept(endpoint="http://127.0.0.1:4318", incoming="ignore") == ()
