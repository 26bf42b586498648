"""An alert that an app declares: it is fired and resolved in transactions, or decided by a check."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from boathook.db.sql_functions import FIRE_ALERT, SqlCall
from boathook.domain.alerts import AlertReading, storable_details, storable_subject
from boathook.domain.errors import ConfigError, HandlerMisuse
from boathook.domain.json_document import encode
from boathook.handlers.manifest import Manifest
from boathook.handlers.sessions import call, call_sync
from boathook.handlers.transaction import Transaction

Check = Callable[[Transaction], Awaitable[Iterable[AlertReading]]]


class AppAlert:
    """An alert of an app, as `Boathook.alert` returns it.

    An evaluation of the rules, on the elected keeper, turns what was fired into one alert for each subject, and sends
    it as those of boathook itself.
    """

    def __init__(self, name: str, manifest: Manifest) -> None:
        self.name = name
        """The name of its rule: ``APP.NAME``."""
        self._manifest = manifest

    async def fire(self, tx: Any, subject: str = "", /, **details: object) -> None:
        """Fire the alert for *subject* when the transaction of *tx* commits.

        Repeats are counted as ``{value}``, so that many make one alert, which is sent again after
        ``repeat_interval_s`` at the earliest. No transaction waits for another that fires the same alert. It recovers
        once it was not fired for ``over_s`` seconds, or by `resolve`. A handler that fails rolls back its transaction,
        and what it has fired; use ``hook.transaction()`` for an alert about the failure itself.

        Args:
            tx: A handler's `Transaction`, that of ``hook.transaction()``, or another session that
                `Boathook.publish` takes.
            subject: What it is about, such as an id; cut after 200 characters.
            details: Texts for further placeholders in the summary, cut after 500 characters; those of the latest count.

        Raises:
            HandlerMisuse: the alert has a check, or a detail has a name that boathook uses.
        """
        await call(tx, *self._signal(subject, details))

    def fire_sync(self, tx: Any, subject: str = "", /, **details: object) -> None:
        """Do what `fire` does, through a `SyncTransaction` or a sync session."""
        call_sync(tx, *self._signal(subject, details))

    async def resolve(self, tx: Any, subject: str = "", /) -> None:
        """End the alert for *subject* when the transaction of *tx* commits; if it does not fire, nothing happens."""
        await call(tx, *self._signal(subject, None))

    def resolve_sync(self, tx: Any, subject: str = "", /) -> None:
        """Do what `resolve` does, through a `SyncTransaction` or a sync session."""
        call_sync(tx, *self._signal(subject, None))

    def check(self, function: Check) -> Check:
        """Make the decorated function decide when the alert fires, at each evaluation of the rules.

        It takes a transaction, runs on the elected keeper, and returns an `AlertReading` for each subject whose value
        is to be compared with the threshold. A subject that it no longer returns recovers. It may take ten seconds. If
        it fails, the alerts stay as they are, and the alert ``alert_check_failed`` fires.

        Raises:
            ConfigError: the function is not async, does not take one argument, or the alert has a check already.
        """
        title = f"hook.alert: the check of {self.name}"
        if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 1:
            name = getattr(function, "__name__", "check")
            raise ConfigError(f"{title} takes a transaction and is async: async def {name}(tx)")
        if self.name in self._manifest.alert_checks:
            raise ConfigError(f"{title} is declared twice; remove one of them")
        self._manifest.add_alert_check(self.name, function)
        return function

    def _signal(self, subject: str, details: dict[str, object] | None) -> SqlCall:
        """Return the call that fires the alert with *details*, or resolves it with None."""
        if self.name in self._manifest.alert_checks:
            raise HandlerMisuse(
                f"the alert {self.name} has a check, which decides when it fires; remove one of the two"
            )
        try:
            texts = storable_details(details or {})
        except ValueError as error:
            raise HandlerMisuse(f"{self.name}: {error}") from None
        is_resolved = "false" if details is not None else "true"
        return FIRE_ALERT, (self.name, storable_subject(subject), is_resolved, encode(texts).decode())
