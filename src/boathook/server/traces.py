"""Starts the traces of one process, and gives their exporter its way out."""

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
    """Refuse to start with traces that cannot be made.

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
    """Trace for as long as the block lasts, where the settings say so. Raises ConfigError as `check` does."""
    if not settings.tracing.is_on:
        yield
        return
    # What they stand on takes a while to import, and is not there unless it is wanted.
    from boathook.observability.otlp import OtlpExporter

    wanted = settings.tracing
    rules = tracing.TracingOptions(
        sample=wanted.sample,
        continues=wanted.incoming != "ignore",
        trusts=wanted.incoming == "trust",
        propagates=wanted.propagate,
    )
    collector = OtlpExporter(wanted, process=process, post=_Poster(settings))
    tracing.install(tracing.Tracer(rules, collector))
    try:
        yield
    finally:
        tracing.install(None)
        collector.close()


class _Poster:
    """Posts batches of spans, through the operator's proxy, to wherever the operator's collector is."""

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
