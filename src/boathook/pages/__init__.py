"""Shared by console and portal: rendering, templates, static files, and the pages of an application's endpoints.

`site` is the ASGI application, `rendering` makes its pages, `context` holds what all requests share. The pages of an
application (`endpoints`, `endpoint_lists`) are functions of an `ApplicationScope`, which says whose pages they are.
"""

from typing import Final

from boathook.pages import endpoint_lists, endpoints

APPLICATION_PAGES: Final = (endpoints.pages, endpoint_lists.pages)
"""The pages of an application; the first match counts."""
