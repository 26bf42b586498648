"""The quarantine stores no token of a request, for any source."""

import pytest

from boathook.ingest.quarantine import redact_query

URL = "https://hooks.example.com/in/shop?a=%C3%A9+b&key=geheim&x"


def test_tokens_of_all_sources_are_hashed():
    hidden = redact_query(URL, {"key", "token"})
    assert "geheim" not in hidden
    assert hidden.startswith("https://hooks.example.com/in/shop?a=%C3%A9+b&key=sha256%3A")


@pytest.mark.parametrize("url", [URL, "https://hooks.example.com/in/shop", "https://hooks.example.com/in/shop?"])
def test_an_address_without_a_token_stays_as_it_was_signed(url: str):
    assert redact_query(url, {"token"}) == url
