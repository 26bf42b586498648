"""Declares the kind of destination that receives messages as HTTP requests."""

from typing import Final

from boathook.config.destinations import DestinationKind

http: Final = DestinationKind(
    label="URL",
    executor="boathook.delivery.http_executor:HttpExecutor",
    endpoint_fields=frozenset({"url", "auth", "headers"}),
)
