"""Server-rendered pages of an app, in its mount; the names in ``__all__`` are public API.

`Pages` declares an app's pages, with layout, navigation, forms, CSRF protection and security headers. Its functions get
a `PageRequest`. `Refusal` is shown as an error page, and `read_model` validates a form or a JSON body with a pydantic
model and words its errors in the user's language. `JsonApi` is an API for the same users, with an `ApiRequest`.
`boathook_pages.sign_in` adds users, `boathook_pages.languages` the languages.

The other modules of this package are internal; those outside `kit` are shared with the console and the portal.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from boathook_pages.kit.api import ApiRequest, JsonApi
    from boathook_pages.kit.errors import BadField, Conflict, InvalidForm, LimitReached, Missing, Refusal
    from boathook_pages.kit.forms import read_model
    from boathook_pages.kit.request import PageRequest
    from boathook_pages.kit.site import Pages

__all__ = [
    "ApiRequest",
    "BadField",
    "Conflict",
    "InvalidForm",
    "JsonApi",
    "LimitReached",
    "Missing",
    "PageRequest",
    "Pages",
    "Refusal",
    "read_model",
]

_HOMES: typing.Final = {
    "ApiRequest": "api",
    "BadField": "errors",
    "Conflict": "errors",
    "InvalidForm": "errors",
    "JsonApi": "api",
    "LimitReached": "errors",
    "Missing": "errors",
    "PageRequest": "request",
    "Pages": "site",
    "Refusal": "errors",
    "read_model": "forms",
}

# Each name is imported on first access: the texts of `boathook_pages.languages` need none of them.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.kit.{_HOMES[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return list(__all__)
