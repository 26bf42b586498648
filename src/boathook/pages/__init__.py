"""Server-rendered pages of an app, in its mount; the names in ``__all__`` are public API.

`Pages` declares an app's pages, with layout, navigation, forms, CSRF protection and security headers. Its functions get
a `PageRequest`. `Refusal` is shown as an error page, and `read_model` validates a form or a JSON body with a pydantic
model and words its errors in the user's language. `JsonApi` is an API for the same users, with an `ApiRequest`.
`boathook.sign_in` adds users, `boathook.languages` the languages.

The other modules of this package, except those below `kit`, are internal: they are shared with the console.
"""

from boathook.pages.kit.api import ApiRequest, JsonApi
from boathook.pages.kit.errors import BadField, Conflict, InvalidForm, LimitReached, Missing, Refusal
from boathook.pages.kit.forms import read_model
from boathook.pages.kit.request import PageRequest
from boathook.pages.kit.site import Pages

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
