"""The address of the gateway that runs on this host: from a file in its data folder, else from ``server.bind``.

The supervisor writes the file once it listens, as ``--port`` may override ``server.bind``. The file counts while it is
locked, so that the one of a killed process does not.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from boathook.config import Settings

_PATTERN: Final = "*gateway.address"


def gateway_url(settings: Settings, at: tuple[str, int] | None = None) -> str:
    """Return the address of the gateway of this host, as a client on this host reaches it.

    Args:
        settings: name the data folder and ``server.bind``.
        at: host and port of a gateway; None uses the one that runs on the data folder, else ``server.bind``.
    """
    if at is not None:
        return _reachable_url(*at)
    return next(_running(settings.server.data_dir), "") or bind_url(settings)


def bind_url(settings: Settings) -> str:
    """Return the address of ``server.bind``, as a client on this host reaches it."""
    return _reachable_url(settings.server.host, settings.server.port)


@contextlib.contextmanager
def published_address(data_dir: Path, prefix: str, host: str, port: int) -> Iterator[None]:
    """Let commands on this host find the gateway for the duration of the block.

    Args:
        data_dir: the data folder.
        prefix: unique among the instances on the data folder.
        host: where the gateway listens.
        port: where the gateway listens.
    """
    path = data_dir / f"{prefix}gateway.address"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # such as a full disk: commands then use server.bind
            file = stack.enter_context(path.open("w", encoding="ascii"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(path.unlink, missing_ok=True)
            file.write(_reachable_url(host, port))
            file.flush()
        yield


def _running(data_dir: Path) -> Iterator[str]:
    for path in sorted(data_dir.glob(_PATTERN)):
        with contextlib.suppress(OSError), path.open(encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield file.read()


def _reachable_url(host: str, port: int) -> str:
    """Return the URL at which a client on this host reaches a socket that listens at *host*."""
    # The addresses to call, not to listen on.
    return socket_url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)  # noqa: S104


def socket_url(host: str, port: int) -> str:
    """Return the URL of a socket's address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
