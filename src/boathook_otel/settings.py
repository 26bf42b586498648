"""The settings of traces: [tracing]."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from boathook.config import Settings
from boathook.config.packages import PackageTable, require_extra
from boathook.config.types import BaseUrl, PositiveInt, Secret, check_base_url
from boathook_otel import package
from boathook_otel.spans import HEADER


def _check_link(text: str) -> str:
    if text and "{trace_id}" not in check_base_url(text):
        raise ValueError('must be an address with {trace_id}, such as "https://grafana.example.com/trace/{trace_id}"')
    return text


class TracingTable(PackageTable):
    """OpenTelemetry traces, from the request of an event to every attempt of its deliveries."""

    endpoint: BaseUrl
    """Base URL of an OTLP collector over HTTP; empty disables tracing."""
    headers: dict[str, Secret] = Field(repr=False)
    service: Annotated[str, Field(min_length=1, max_length=200)]
    sample: Annotated[float, Field(ge=0, le=1)]
    incoming: Literal["continue", "trust", "ignore"]
    """Whether a sender's trace is continued, and whether its sampling decision is used."""
    propagate: bool
    queue: PositiveInt
    link: Annotated[str, AfterValidator(_check_link)]
    """URL template of a trace, for links in the console; empty for none."""

    @property
    def is_on(self) -> bool:
        """Whether events are traced."""
        return bool(self.endpoint)

    @property
    def kept_headers(self) -> tuple[str, ...]:
        """See `PackageTable.kept_headers`."""
        return (HEADER,) if self.is_on and self.incoming != "ignore" else ()


TABLES: Final[Mapping[str, type[PackageTable]]] = {"tracing": TracingTable}


def find_table(settings: Settings) -> TracingTable | None:
    """Return the settings if events are traced."""
    table = settings.table(TracingTable)
    return table if table is not None and table.is_on else None


def check(settings: Settings) -> None:
    """Check that tracing can work if it is configured.

    Raises:
        ConfigError: the extra is not installed, or a header's secret cannot be read.
    """
    if (table := find_table(settings)) is not None:
        require_extra(package, "tracing.endpoint:")
        resolve_headers(settings, table)


def resolve_headers(settings: Settings, table: TracingTable) -> dict[str, str]:
    """Return the headers for the collector with their secrets. Raises ConfigError."""
    return {name: settings.resolve(value, f"tracing.headers.{name}") for name, value in table.headers.items()}
