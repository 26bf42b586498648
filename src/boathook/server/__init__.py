"""`boathook serve`: one supervisor, and a child process for each gateway, worker, sender and keeper.

    supervisor ──binds the port, starts PostgreSQL, migrates, registers routes──> starts and monitors children
        gateway-0 …      receive requests on the supervisor's socket
        worker-0 …       run handlers
        suspects-0       runs deliveries that crashed two workers, one at a time
        sender-0 …       deliver messages to endpoints
        keeper-0         recovers expired leases and runs maintenance
        fork server      forks all of them, after importing their modules

A child reads its configuration as one line from standard input, which then stays open; end of file means that the
supervisor is gone. Its event loop writes heartbeats to a pipe, so that a blocked loop is detected.
"""

from typing import TYPE_CHECKING

from boathook.server.loading import bind, check_mounts, load_apps, load_hooks, migrations_of, with_apps

if TYPE_CHECKING:
    from boathook.config import Settings

__all__ = ["bind", "check_mounts", "load_apps", "load_hooks", "migrations_of", "serve", "with_apps"]


def serve(settings: "Settings") -> int:
    """Run boathook until SIGTERM or SIGINT; return 0 if all work in progress was finished.

    Raises:
        ConfigError: a setting, the app or the address is wrong; the message says what to write.
        DatabaseError: PostgreSQL cannot be reached, is unsafe, or refuses the schema.
    """
    # Imported here because commands that only load apps do not need the supervisor's modules.
    from boathook.server.supervisor import supervise

    return supervise(settings)
