"""Where requests may come from: the networks a sender, or the owner, names."""

from collections.abc import Sequence
from ipaddress import ip_network

from boathook.domain.errors import ConfigError
from boathook.domain.verification import Reason, Rejected, Request, SourceSpec
from boathook.http.limits import Network, is_within
from boathook.verification.tokens import ValidProof, reject


class AddressCheck:
    """Checks that requests to one source come from where they may; the source's own ``addresses`` come first.

    Raises:
        ConfigError: what should be a network is none.
    """

    def __init__(self, spec: SourceSpec, networks: Sequence[str] = ()) -> None:
        self._networks = tuple(_network(spec, text) for text in spec.addresses or networks)

    @property
    def proof_headers(self) -> frozenset[str]:
        """Nothing: the address is kept with every refusal."""
        return frozenset()

    def check(self, request: Request, _now: float) -> ValidProof | Rejected:
        """Check one request."""
        if is_within(request.client, self._networks):
            return ValidProof(None)
        shown = ascii(request.client[:60])
        return reject(
            Reason.ADDRESS_NOT_ALLOWED,
            f"the sender's address {shown} lies in none of the {len(self._networks)} networks it may come from; "
            "behind a proxy, server.trusted_proxies must name the proxy",
            may_reverify=True,
        )


def _network(spec: SourceSpec, text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError:
        raise ConfigError(
            f"sources.{spec.name}.addresses: {text!r} is no address and no network; "
            "write such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32, with no bits set behind the slash's count"
        ) from None
