"""The pages of an application's endpoints, which console and portal share."""

from typing import Final

from boathook_console.shared import endpoint_lists, endpoints

APPLICATION_PAGES: Final = (endpoints.pages, endpoint_lists.pages)
"""The pages of an application; the first match counts."""
