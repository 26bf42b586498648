"""The handlers of a Django project, set up for processes that start without ``manage.py``: `server.app` names them."""

import django

from boathook.django import hook

__all__ = ["hook"]

django.setup()
