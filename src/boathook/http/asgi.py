"""Types of ASGI applications, and boathook's own key in a request's scope."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

IS_AUTHENTICATED: Final = "boathook.is_known"
"""Set in the scope of a request once its credentials are known to be valid."""
