"""Paths with needless percent-encoding."""

import pytest

from boathook.http.asgi import has_needless_escapes


@pytest.mark.parametrize(
    "path", ["/%63", "/%41", "/%5a", "/%5A", "/%30", "/%39", "/%2f", "/%2E", "/%2d", "/%5f", "/%7a", "/a%20%6Fb"]
)
def test_encoded_letters_digits_and_slashes_are_detected(path: str):
    assert has_needless_escapes(path.encode())


@pytest.mark.parametrize(
    "path", ["/", "/a%20b", "/%D0%96", "/%C3%A9", "/%40", "/%3A", "/%5B%60%7B", "/%", "/%6", "/%zz", "/%252f"]
)
def test_necessary_escapes_are_allowed(path: str):
    assert not has_needless_escapes(path.encode())
