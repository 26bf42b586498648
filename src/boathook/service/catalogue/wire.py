"""What the routes of operations and the remote command line agree on."""

import functools
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Final

BASE: Final = "/api/v1"
PATH_FIELD: Final = re.compile(r"{(\w+)}")
"""A field of the input in the path of a route."""
QUERY_METHODS: Final = frozenset({"GET", "DELETE"})
"""Methods whose requests have the input in the query instead of a JSON body."""
CLIENT_HEADER: Final = "boathook-client"
"""In requests of the remote command line: its version. Errors then name fields in backticks, as the service does."""
VERSION_HEADER: Final = "boathook-version"
"""In responses to these: the version of the server."""


@functools.cache
def own_version() -> str:
    """Return the version of this boathook."""
    try:
        return version("boathook")
    except PackageNotFoundError:  # run from its source
        return "unknown"
