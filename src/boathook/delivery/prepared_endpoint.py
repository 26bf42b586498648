"""What is sent to one endpoint: how its messages are addressed, signed and tried again, made once for each revision."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from boathook.db.endpoint_deliveries import EndpointConfig
from boathook.delivery.http_attempt import RequestTarget, collect_secrets
from boathook.delivery.signer import read_signer
from boathook.domain.policy import Failure, RetryPolicy

UNREADABLE: Final = "SECRET_UNREADABLE"
"""The code of an attempt for which a stored secret could not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEndpoint:
    """An endpoint ready to be sent to, or the reason why it cannot be."""

    revision: int
    url: str
    policy: RetryPolicy
    timeout_s: float
    target: RequestTarget | None = None
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """Every text that must not be recorded of a response."""
    oauth: dict[str, str] | None = field(default=None, repr=False)
    """Where to get a token first, by the names of the endpoint's settings."""
    good_until: datetime | None = None
    fault: Failure | None = None

    def is_current(self, revision: int) -> bool:
        """Return whether it is of this revision of the endpoint, and none of its secrets has expired since."""
        if self.revision < revision:
            return False
        return self.good_until is None or datetime.now(UTC) < self.good_until

    def with_token(self, token: str) -> "PreparedEndpoint":
        """Return it with an OAuth token."""
        assert self.target is not None
        target = replace(self.target, bearer=token)
        return replace(self, target=target, secrets=collect_secrets(target))


def prepare_endpoint(address: EndpointConfig, *, policy: RetryPolicy, timeout_s: float) -> PreparedEndpoint:
    """Return the destination of an address; *policy* and *timeout_s* are those of endpoints that say nothing else."""
    chosen, longest_s = address.policy or policy, address.timeout_s or timeout_s
    try:
        if address.fault or not address.secrets:
            raise ValueError(address.fault or "the endpoint has no secret")
        target = _target(address, longest_s)
    except (ValueError, KeyError) as error:
        fault = Failure(code=UNREADABLE, error=f"nothing was sent: {error}")
        return PreparedEndpoint(
            revision=address.revision, url=address.url, policy=chosen, timeout_s=longest_s, fault=fault
        )
    return PreparedEndpoint(
        revision=address.revision,
        url=address.url,
        policy=chosen,
        timeout_s=longest_s,
        target=target,
        secrets=collect_secrets(target),
        oauth=address.auth.get("oauth2"),
        good_until=address.good_until,
    )


def _target(address: EndpointConfig, timeout_s: float) -> RequestTarget:
    basic: dict[str, Any] | None = address.auth.get("basic")
    mtls: dict[str, Any] | None = address.auth.get("mtls")
    return RequestTarget(
        url=address.url,
        signers=tuple(read_signer(secret) for secret in address.secrets),
        timeout_s=timeout_s,
        headers=address.headers,
        basic=None if basic is None else (basic["username"], basic["password"]),
        client_certificate=None if mtls is None else (mtls["certificate"], mtls["key"]),
    )
