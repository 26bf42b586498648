"""Texts of an app in several languages, from one gettext catalogue per app; public API.

The texts in the code are English. The folder ``locale/<language>/LC_MESSAGES`` next to an app's modules has its
translations as ``*.po`` files, which are read as they are. `docs/how-to/pages.md` describes how to write them.
"""

from boathook_pages.languages.catalogues import Languages, LanguageSetting, TimeZone, gettext_noop

__all__ = ["LanguageSetting", "Languages", "TimeZone", "gettext_noop"]
