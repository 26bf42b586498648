"""`boathook serve`: one supervisor, and a child process for each gateway, worker, sender and keeper.

    supervisor ──binds the port, starts PostgreSQL, migrates, registers routes──> starts and watches children
        gateway-0 …      take requests in, on the supervisor's socket
        worker-0 …       run handlers
        suspects-0       runs, one at a time, what took two workers down
        sender-0 …       send endpoints what they are owed
        keeper-0         takes over what vanished workers held, and keeps the journal in bounds
        fork server      forks them all, once it has imported what they need

A child learns what to do from one line on its standard input, which then stays open: its end means that the
supervisor is gone. It beats on a pipe from its event loop, so that a loop that no longer turns is noticed.
"""

from typing import TYPE_CHECKING

from boathook.server.loading import bind, load_apps, load_hooks, migrations_of, with_apps

if TYPE_CHECKING:
    from boathook.config import Settings

__all__ = ["bind", "load_apps", "load_hooks", "migrations_of", "serve", "with_apps"]


def serve(settings: "Settings") -> int:
    """Run boathook until SIGTERM or SIGINT; return 0 if everything that was begun was finished.

    Raises:
        ConfigError: a setting, the app or the address is wrong; the message says what to write.
        DatabaseError: PostgreSQL cannot be reached, is unsafe, or refuses the schema.
    """
    # Commands that only load apps need none of what the supervisor imports.
    from boathook.server.supervisor import supervise

    return supervise(settings)
