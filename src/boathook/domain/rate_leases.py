"""Requests of a gateway for tokens of a source's rate, which all gateways share."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's request for tokens of one source; a token lets one request pass."""

    source: str
    per_second: float
    """The rate that all gateways share."""
    burst: int
    """Maximum number of tokens that all gateways together can lease at once."""
    spent: int
    """Requests that have passed without a leased token since the last lease; they are charged, whatever is granted."""
    wanted: int
    """Maximum number of tokens to grant."""


LeaseTokens = Callable[[Sequence[LeaseRequest]], Awaitable[Mapping[str, object]]]
"""Charges what was spent, and returns the tokens granted to each source.

It answers or fails within its own deadline. What it returns is not trusted: `boathook.ingest.source_rate` bounds it.
It raises a BoathookError if there is no answer.
"""
