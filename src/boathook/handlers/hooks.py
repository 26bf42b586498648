"""The `Boathook` objects that one process runs together: the user's own, and those of the apps it loads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from boathook.domain.errors import ConfigError
from boathook.domain.model import Route
from boathook.domain.policy import RetryDefaults
from boathook.handlers.api import Boathook
from boathook.handlers.handler import Handler


@dataclass(frozen=True, slots=True)
class Hooks:
    """All of them, by who declared each: a module's name, or ``module:attribute`` for the user's own.

    Raises:
        ConfigError: two of them have one name, or handlers of one name.
    """

    owners: Mapping[str, Boathook]
    handlers: dict[str, Handler] = field(init=False, default_factory=dict)
    """Those of all, by name."""

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for owner, hook in self.owners.items():
            if hook.name and (other := seen.setdefault(hook.name, owner)) != owner:
                raise ConfigError(f"{other} and {owner} are both called {hook.name!r}; load one of them")
            for name, handler in hook.handlers.items():
                if self.handlers.setdefault(name, handler) is not handler:
                    raise ConfigError(f"{owner}: the handler {name} exists already; give one of the two another name=")

    def __iter__(self) -> Iterator[Boathook]:
        return iter(self.owners.values())

    @property
    def published(self) -> int:
        """How many events they have stored so far; their transactions may still roll back."""
        return sum(hook.published for hook in self)

    def routes(self, *, timeout_s: float, retries: RetryDefaults) -> dict[str, list[Route]]:
        """Return the routes of all handlers by who declares them."""
        return {owner: hook.routes(owner, timeout_s=timeout_s, retries=retries) for owner, hook in self.owners.items()}
