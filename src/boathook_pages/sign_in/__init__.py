"""Users of the pages of an app: passwords, tokens, sessions and roles; the names in ``__all__`` are public API.

`SignIn` is given to `boathook_pages.Pages`, and adds the pages for signing in and out and for changing the password.
"""

from boathook_pages.sign_in.sign_in import SignIn
from boathook_pages.sign_in.users import User

__all__ = ["SignIn", "User"]
