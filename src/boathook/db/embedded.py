"""The PostgreSQL that boathook starts itself where `database.url` is empty; an optional package has it."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from boathook.config.packages import find_part
from boathook.domain.errors import ConfigError

ProgressCallback = Callable[[str], None]


class EmbeddedServer(Protocol):
    """A process's use of the PostgreSQL server of a data folder."""

    @property
    def url(self) -> str:
        """The database URL, as asyncpg, psycopg and SQLAlchemy parse it."""
        ...

    def pid(self) -> int | None:
        """Return the process id of the running server, or None."""
        ...

    async def ensure_running(self) -> None:
        """Start the server again if it has died. Raises DatabaseUnavailable."""
        ...

    async def stop(self) -> bool:
        """Unregister; return whether this was the last user, so that the server is shut down."""
        ...


async def start_embedded(data_dir: Path, *, progress: ProgressCallback | None = None) -> EmbeddedServer:
    """Register as a user of the server of *data_dir*; create and start the server if needed.

    Raises:
        ConfigError: it is not installed, or no account can run it.
        DatabaseUnavailable: the server does not start; the message ends with its log.
    """
    implementation = find_part("embedded")
    if implementation is None:
        raise ConfigError(
            "no PostgreSQL to work with: set database.url (or BOATHOOK_DATABASE_URL) to one that runs;"
            " this installation is without the embedded one"
        )
    server: EmbeddedServer = await implementation.start(data_dir, progress=progress)
    return server
