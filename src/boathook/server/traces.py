"""Starts tracing in one process, and connects its exporter to the HTTP client."""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from boathook.config import Settings
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.observability import tracing

_PATH: Final = "/v1/traces"
_MAX_ANSWER: Final = 1_048_576
_NEEDED: Final = "opentelemetry.exporter.otlp.proto.common"


def check(settings: Settings) -> None:
    """Check that tracing can work if it is configured.

    Raises:
        ConfigError: the extra is not installed, or a header's secret cannot be read.
    """
    if not settings.tracing.is_on:
        return
    try:
        is_there = find_spec("opentelemetry.sdk") is not None and find_spec(_NEEDED) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError("tracing.endpoint: traces need more: pip install 'boathook[otel]', or leave it empty")
    _headers(settings)


@contextlib.contextmanager
def traced(settings: Settings, process: str) -> Iterator[None]:
    """Trace for the duration of the block, if configured. Raises ConfigError as `check` does."""
    if not settings.tracing.is_on:
        yield
        return
    # OpenTelemetry is optional and slow to import.
    from boathook.observability.otlp import OtlpExporter

    options = settings.tracing
    tracing_options = tracing.TracingOptions(
        sample=options.sample,
        continues=options.incoming != "ignore",
        trusts=options.incoming == "trust",
        propagates=options.propagate,
    )
    collector = OtlpExporter(options, process=process, post=_Poster(settings))
    tracing.install(tracing.Tracer(tracing_options, collector))
    try:
        yield
    finally:
        tracing.install(None)
        collector.close()


class _Poster:
    """Posts batches of spans to the operator's collector, through the configured proxy."""

    def __init__(self, settings: Settings) -> None:
        from boathook.http_client.client import Client, unguarded_settings

        self._client = Client(unguarded_settings(settings))
        self._url = settings.tracing.endpoint.rstrip("/") + _PATH
        self._headers = {**_headers(settings), "content-type": "application/x-protobuf"}

    def __call__(self, body: bytes, within_s: float) -> None:
        """Post one batch. Raises FetchFailed."""
        answer = self._client.submit(
            "POST", self._url, headers=self._headers, body=body, timeout_s=within_s, max_bytes=_MAX_ANSWER
        ).result()
        if not answer.is_ok:
            raise FetchFailed(f"the collector answered with status {answer.status}", status=answer.status)


def _headers(settings: Settings) -> dict[str, str]:
    return {
        name: settings.resolve(value, f"tracing.headers.{name}") for name, value in settings.tracing.headers.items()
    }
