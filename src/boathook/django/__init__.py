"""boathook in a Django project: handlers in each app's ``hooks.py``, DATABASES, and ``manage.py boathook``.

With ``"boathook.django"`` in INSTALLED_APPS, write handlers into the ``hooks.py`` of any app::

    from boathook.django import hook

    @hook.on("stripe", "invoice.paid")
    def mark_paid(event):
        Invoice.objects.filter(number=event.json["data"]["object"]["number"]).update(is_paid=True)

``manage.py migrate`` also brings boathook's schema up to date, in the database of the alias ``default``.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

from boathook.domain.errors import ConfigError
from boathook.handlers.api import Boathook, Function
from boathook.handlers.sessions import django

__all__ = ["DjangoBoathook", "hook"]


class DjangoBoathook(Boathook):
    """A `Boathook` whose handlers run inside ``transaction.atomic`` of Django's database, with the ORM."""

    def on(self, source: str | None = None, *types: str, **options: Any) -> Callable[[Function], Function]:
        """Register the decorated function as `Boathook.on` does, with ``session=django()`` unless another is given.

        It takes the event and optionally Django's connection. What the models write is committed together with the end
        of the delivery, or not at all.

        Raises:
            ConfigError: the function is async, which ``transaction.atomic`` is not.
        """
        session = options.pop("session", None) or django()
        register = super().on(source, *types, session=session, **options)

        def decorate(function: Function) -> Function:
            if inspect.iscoroutinefunction(function):
                name = function.__name__
                raise ConfigError(
                    f"handler {name} is async, but Django's transactions are not; write def {name} without async"
                )
            return register(function)

        return decorate


hook: Final = DjangoBoathook()
"""Declares the handlers of the project."""
