"""The settings of traces: where they go, and what of strangers' traces is heeded."""

from typing import Annotated, Literal

from pydantic import Field

from boathook.config.types import BaseUrl, PositiveInt, Secret, Table


class TracingSettings(Table):
    """OpenTelemetry's traces, from the request that brings an event to every attempt of its deliveries."""

    endpoint: BaseUrl
    """Where a collector takes OTLP over HTTP; empty: nothing is traced."""
    headers: dict[str, Secret] = Field(repr=False)
    service: Annotated[str, Field(min_length=1, max_length=200)]
    sample: Annotated[float, Field(ge=0, le=1)]
    incoming: Literal["continue", "trust", "ignore"]
    """Whether a sender's trace goes on, and whether its mark of what is sampled counts."""
    propagate: bool
    queue: PositiveInt

    @property
    def is_on(self) -> bool:
        """Whether anything is traced."""
        return bool(self.endpoint)
