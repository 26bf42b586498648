"""Identity providers that authenticate operators; an optional package brings one."""

import secrets
from typing import ClassVar, Protocol

import msgspec

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.domain.model import Role
from boathook.domain.redaction import RedactedStruct


class AuthorizationRequest(RedactedStruct, frozen=True):
    """The state of one login attempt, stored by the browser."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"nonce", "state", "verifier"})

    state: str = msgspec.field(default_factory=secrets.token_urlsafe)
    nonce: str = msgspec.field(default_factory=secrets.token_urlsafe)
    verifier: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(48))
    next_path: str = ""
    """The page that was requested before the login."""


class ProvidedIdentity(msgspec.Struct, frozen=True):
    """A user as a provider identifies them."""

    subject: str
    """The issuer and the user's id there, which is never reassigned."""
    name: str
    role: Role | None
    """None if the provider grants no role."""
    is_role_managed: bool
    """Whether the provider decides the user's role."""
    is_name_verified: bool
    """Whether no other user of the provider can have this name."""


class IdentityProvider(Protocol):
    """Authenticates users by redirecting their browsers; one per process."""

    name: str
    """What the page for signing in calls it."""

    async def authorization_url(self, attempt: AuthorizationRequest, return_to: str) -> str:
        """Return the provider's login page. Raises FetchFailed, or InvalidState if it cannot be used."""
        ...

    async def complete_login(self, attempt: AuthorizationRequest, code: str, return_to: str) -> ProvidedIdentity:
        """Return the user who returned with *code*.

        Raises:
            FetchFailed: the provider could not be reached.
            InvalidState: it does not confirm the user, or says too little of them.
        """
        ...


def open_identity_provider(settings: Settings) -> IdentityProvider | None:
    """Return the provider of the package in use that has one; None if there is none. Raises ConfigError."""
    for package in settings.packages:
        if package.identity_provider is not None:
            provider: IdentityProvider | None = resolve(package.identity_provider)(settings)
            if provider is not None:
                return provider
    return None
