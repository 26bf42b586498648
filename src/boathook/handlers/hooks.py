"""The `Boathook` objects of one process: the user's own and those of the loaded apps."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from boathook.domain.errors import ConfigError
from boathook.domain.model import Route
from boathook.domain.policy import RetryDefaults
from boathook.handlers.api import Boathook
from boathook.handlers.handler import Handler


@dataclass(frozen=True, slots=True)
class Hooks:
    """All `Boathook` objects by owner: a module's name, or ``module:attribute`` for the user's own.

    Args:
        owners: the objects.
        packages: the owners that are optional packages; no other handler has a name that begins with that of their app.

    Raises:
        ConfigError: two of them have the same name, or handlers with the same name or with one of boathook's own.
    """

    owners: Mapping[str, Boathook]
    packages: Collection[str] = ()
    handlers: dict[str, Handler] = field(init=False, default_factory=dict)
    """All handlers by name."""

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        reserved = {self.owners[owner].name: owner for owner in self.packages}
        for owner, hook in self.owners.items():
            if hook.name and (other := seen.setdefault(hook.name, owner)) != owner:
                raise ConfigError(f"{other} and {owner} are both called {hook.name!r}; load one of them")
            for name, handler in hook.handlers.items():
                if reserved.get(name.partition(".")[0], owner) != owner:
                    raise ConfigError(f"{owner}: {name} is a name of boathook's own handlers; take another name=")
                if self.handlers.setdefault(name, handler) is not handler:
                    raise ConfigError(f"{owner}: the handler {name} already exists; give one of the two another name=")

    def __iter__(self) -> Iterator[Boathook]:
        return iter(self.owners.values())

    @property
    def published(self) -> int:
        """Number of events that they have stored so far; their transactions may still roll back."""
        return sum(hook.published for hook in self)

    def routes(self, *, timeout_s: float, retries: RetryDefaults) -> dict[str, list[Route]]:
        """Return the routes of all handlers by owner."""
        return {owner: hook.routes(owner, timeout_s=timeout_s, retries=retries) for owner, hook in self.owners.items()}
