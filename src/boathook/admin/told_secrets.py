"""What an operator does about a secret that a sender tells by itself: see it, so that it counts, or forget it."""

from boathook.config import Settings
from boathook.domain.errors import ConfigError, NotFound
from boathook.inbound.captured import CapturedSecrets
from boathook.inbound.gates import is_told
from boathook.journal import moves
from boathook.journal.database import Database
from boathook.journal.moves import Action


async def show_secret(database: Database, settings: Settings, name: str, action: Action) -> str:
    """Return the secret that the sender of a source has told; from now on it proves requests.

    Raises:
        NotFound: there is no such source, or its sender has told none yet.
        ConfigError: this source's secret is not one that its sender tells.
    """
    _check(settings, name)
    async with database.transaction() as connection:
        await moves.record(connection, action, "source.secret.show", name)
        secret = CapturedSecrets(settings.server.data_dir).confirm(name)
        if secret is None:
            raise NotFound(f"the sender of {name} has told no secret yet; set up its webhook there, then ask again")
    return secret


async def forget_secret(database: Database, settings: Settings, name: str, action: Action) -> None:
    """Forget the secret that the sender of a source has told, so that it can tell another.

    Raises:
        NotFound: there is no such source, or nothing to forget.
        ConfigError: this source's secret is not one that its sender tells.
    """
    _check(settings, name)
    async with database.transaction() as connection:
        await moves.record(connection, action, "source.secret.forget", name)
        if not CapturedSecrets(settings.server.data_dir).forget(name):
            raise NotFound(f"the sender of {name} has told no secret, so there is none to forget")


def _check(settings: Settings, name: str) -> None:
    if name not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise NotFound(f"there is no source {name!r}; the settings have {known}")
    if not is_told(settings.sources[name]):
        raise ConfigError(
            f"sources.{name}: its secret is one that you choose or copy, and stands in sources.{name}.secrets"
        )
