"""What an operator does about a secret that a sender tells by itself: see it, so that it counts, or forget it."""

from boathook.config import Settings
from boathook.db import delivery_commands
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.domain.errors import ConfigError, NotFound
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.sources import captures_secret


async def show_secret(database: Database, settings: Settings, name: str, action: AuditContext) -> str:
    """Return the secret that the sender of a source has told; from now on it proves requests.

    Raises:
        NotFound: there is no such source, or its sender has told none yet.
        ConfigError: this source's secret is not one that its sender tells.
    """
    _check(settings, name)
    async with database.transaction() as connection:
        await delivery_commands.record(connection, action, "source.secret.show", name)
        secret = HandshakeSecrets(settings.server.data_dir).confirm(name)
        if secret is None:
            raise NotFound(f"the sender of {name} has not sent a secret yet; set up its webhook, then try again")
    return secret


async def forget_secret(database: Database, settings: Settings, name: str, action: AuditContext) -> None:
    """Forget the secret that the sender of a source has told, so that it can tell another.

    Raises:
        NotFound: there is no such source, or nothing to forget.
        ConfigError: this source's secret is not one that its sender tells.
    """
    _check(settings, name)
    async with database.transaction() as connection:
        await delivery_commands.record(connection, action, "source.secret.forget", name)
        if not HandshakeSecrets(settings.server.data_dir).forget(name):
            raise NotFound(f"the sender of {name} has not sent a secret")


def _check(settings: Settings, name: str) -> None:
    if name not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise NotFound(f"unknown source {name!r}; configured: {known}")
    if not captures_secret(settings.sources[name]):
        raise ConfigError(f"sources.{name}: its secret is configured in sources.{name}.secrets")
