"""The catalogues of an app, the choice of a language, and dates, numbers and amounts as a language writes them."""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import date, datetime
from decimal import Decimal
from gettext import GNUTranslations, NullTranslations
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator

from boathook.domain.errors import ConfigError
from boathook_pages.languages.accept_language import read_accept_language

LanguageSetting = Literal["auto", "en", "ru"]
"""Type of a setting that fixes the language of an app, or leaves it to each user."""


def _check_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}; use a name such as Europe/Moscow") from None
    return name


TimeZone = Annotated[str, AfterValidator(_check_zone)]
"""Type of a setting with the IANA name of a time zone, such as ``Europe/Moscow``."""

AUTO: Final = "auto"
SOURCE_LANGUAGE: Final = "en"
"""The language of the texts in the code, which needs no catalogue."""
LANGUAGE_NAMES: Final[Mapping[str, str]] = {"en": "English", "ru": "Русский"}
"""The names of languages in these languages."""
_KIT_CATALOGUES: Final = Path(__file__).with_name("locale")
_current: ContextVar[str | None] = ContextVar("boathook_language", default=None)


def gettext_noop(message: str) -> str:
    """Return *message* unchanged; marks a text for translation that `Languages.gettext` gets later."""
    return message


class Languages:
    """The languages of one app.

    Args:
        folder: The folder ``locale`` of the app. Its subfolders are the languages, besides English.
        setting: Returns the app's setting: a language for everybody, or ``auto``.
        time_zone: Returns the IANA name of the zone in which times are shown.
    """

    def __init__(
        self, folder: Path, *, setting: Callable[[], str] = lambda: AUTO, time_zone: Callable[[], str] = lambda: "UTC"
    ) -> None:
        self._folder = folder
        self._setting = setting
        self._time_zone = time_zone

    @functools.cached_property
    def available(self) -> tuple[str, ...]:
        """The languages that the app has texts in, English first."""
        translated = sorted(path.parent.name for path in self._folder.glob("*/LC_MESSAGES"))
        return (SOURCE_LANGUAGE, *(name for name in translated if name != SOURCE_LANGUAGE))

    @property
    def is_fixed(self) -> bool:
        """Whether the setting names the language for everybody."""
        return self._setting_or_auto() != AUTO

    def _setting_or_auto(self) -> str:
        try:
            return self._setting()
        except ConfigError:
            return AUTO  # before the app is loaded, when a form may already be read

    @property
    def current(self) -> str:
        """The language of texts here: that of the setting, else of the innermost `using`, else English."""
        setting = self._setting_or_auto()
        return (_current.get() or SOURCE_LANGUAGE) if setting == AUTO else setting

    def choose(self, own: str | None = None, accept_language: str = "") -> str:
        """Return the language for one user: that of the setting, else the user's *own* choice, else the browser's.

        Args:
            own: the language that the user has chosen; one without texts is ignored.
            accept_language: the header of the request.
        """
        if self.is_fixed:
            return self._setting()
        candidates = (own, *read_accept_language(accept_language))
        return next((candidate for candidate in candidates if candidate in self.available), SOURCE_LANGUAGE)

    @contextlib.contextmanager
    def using(self, language: str | None) -> Iterator[None]:
        """Use a language for the block; one without texts means English, and a setting other than ``auto`` prevails."""
        token = _current.set(language if language in self.available else SOURCE_LANGUAGE)
        try:
            yield
        finally:
            _current.reset(token)

    def gettext(self, message: str, **values: Any) -> str:
        """Return *message* in the current language.

        Args:
            message: the English text; a percent sign is written ``%%``.
            values: what replaces ``%(name)s``.
        """
        return self.translate(message) % values

    def ngettext(self, singular: str, plural: str, n: int, **values: Any) -> str:
        """Return the form for *n* in the current language; ``%(num)s`` is *n*, other values as in `gettext`."""
        return self.translate_plural(singular, plural, n) % {"num": n, **values}

    @staticmethod
    def gettext_noop(message: str) -> str:
        """Return *message* unchanged; see `gettext_noop` of this package."""
        return message

    def translate(self, message: str) -> str:
        """Return *message* in the current language, without values; the function for Jinja's i18n extension."""
        text: str = self._catalogue(self.current).gettext(message)
        return text

    def translate_plural(self, singular: str, plural: str, n: int) -> str:
        """Return the form for *n*, without values; the function for Jinja's i18n extension."""
        text: str = self._catalogue(self.current).ngettext(singular, plural, n)
        return text

    def format_time(self, value: datetime) -> str:
        """Return a time in the app's zone, with the zone's name."""
        from babel.dates import format_datetime, get_timezone, get_timezone_name

        local_time = value.astimezone(get_timezone(self._time_zone()))
        name = get_timezone_name(local_time, width="short", locale=self.current)
        return f"{format_datetime(local_time, 'medium', locale=self.current)} {name}"

    def format_date(self, value: date) -> str:
        """Return a date; that of a time is the day in the app's zone."""
        from babel.dates import format_date, get_timezone

        if isinstance(value, datetime):
            value = value.astimezone(get_timezone(self._time_zone())).date()
        return format_date(value, "medium", locale=self.current)

    def format_number(self, value: float | Decimal) -> str:
        """Return a number with the language's separators."""
        from babel.numbers import format_decimal

        return format_decimal(value, locale=self.current)

    def format_amount(self, minor_units: int, currency: str) -> str:
        """Return an amount of money, given in minor units, such as kopecks, and an ISO 4217 code."""
        from babel.numbers import format_currency, get_currency_precision

        amount = Decimal(minor_units).scaleb(-get_currency_precision(currency))
        return format_currency(amount, currency, locale=self.current)

    def _catalogue(self, language: str) -> NullTranslations:
        return _load(self._folder, language)


@functools.cache
def _load(folder: Path, language: str) -> NullTranslations:
    """Return the texts of an app in a language, and behind them those of the page kit."""
    texts = NullTranslations()
    if language == SOURCE_LANGUAGE:
        return texts
    for place in (_KIT_CATALOGUES, folder):
        for path in sorted((place / language / "LC_MESSAGES").glob("*.po")):
            catalogue = GNUTranslations(_compile(path, language))
            catalogue.add_fallback(texts)
            texts = catalogue
    return texts


def _compile(path: Path, language: str) -> io.BytesIO:
    try:
        from babel.messages.mofile import write_mo
        from babel.messages.pofile import read_po
    except ModuleNotFoundError:
        raise ConfigError('translations need Babel: pip install "boathook[pages]"') from None
    compiled = io.BytesIO()
    with path.open("rb") as file:
        write_mo(compiled, read_po(file, locale=language, abort_invalid=True))
    compiled.seek(0)
    return compiled
