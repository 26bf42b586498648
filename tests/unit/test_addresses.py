"""Addresses as texts: what may be sent to, and what Python and libcurl might read differently."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.http_client.addresses import read_address


@pytest.mark.parametrize(
    ("url", "expected", "host", "port"),
    [
        ("https://a.test", "https://a.test/", "a.test", 443),
        ("http://A.test/x?y=1&z", "http://A.test/x?y=1&z", "a.test", 80),
        ("HTTPS://a.test:443/", "https://a.test/", "a.test", 443),
        ("https://a.test:8443/x", "https://a.test:8443/x", "a.test", 8443),
        ("https://a.test:/x", "https://a.test/x", "a.test", 443),
        ("https://a.test?x", "https://a.test/?x", "a.test", 443),
        ("https://a.test/x#part", "https://a.test/x", "a.test", 443),
        ("https://[2001:DB8::1]:8443/", "https://[2001:DB8::1]:8443/", "2001:db8::1", 8443),
        ("https://8.8.8.8/", "https://8.8.8.8/", "8.8.8.8", 443),
        ("https://a_b.test./{x}|y/../%0d%0a", "https://a_b.test./{x}|y/../%0d%0a", "a_b.test.", 443),
        ("https://u:p%40w@a.test/x", "https://a.test/x", "a.test", 443),
    ],
)
def test_plain_addresses_are_read(url, expected, host, port):
    address = read_address(url)
    assert (address.url, address.host, address.port) == (expected, host, port)
    assert address.is_number == (host in {"8.8.8.8", "2001:db8::1"})
    assert address.user == (("u", "p@w") if "@" in url else None)


@pytest.mark.parametrize(
    "url",
    [
        *("", "a.test", "//a.test/", "/x", "https:", "https://", "https:///x", "https:a.test", "https:/a.test/"),
        *("ftp://a.test/", "file:///etc/passwd", "gopher://a.test/_x", "dict://a.test/", "data:text/plain,x"),
        *("ws://a.test/", "unix:///var/run/docker.sock", "ldap://a.test/", "javascript:1", "telnet://a.test/"),
        *("https://a@b@c.test/", "http://good.test\\@a.test/", "http://a.test\\.b.test/", "https://a.test/\\x"),
        *("https://a.test/ x", " https://a.test/", "https://a.test/\n", "https://a\t.test/", "https://a.test/\x00"),
        *("https://a.test/\x7f", "https://ä.test/", "https://１２７.0.0.1/", "https://a。test/"),  # noqa: RUF001
        *("https://a.test:99999/", "https://a.test:-1/", "https://a.test:x/", "https://a.test:+80/"),
        *("https://a.test:0x50/", "https://a.test:80:80/", "https://[::1/", "https://::1/", "https://[fe80::1%25lo]/"),
        *("https://[v1.x]/", "https://[]/", "https://%61.test/", "https://a.test%00.b.test/", "https://a,b.test/"),
        *("https://a.test;b/", "https://a'b.test/", "https://$x.test/", "https://@/", "https://u:p@/"),
        "https://a.test/" + "x" * 2_000,
    ],
)
def test_odd_addresses_are_refused(url):
    with pytest.raises(ValueError, match="address"):
        read_address(url)


@pytest.mark.parametrize("port", [22, 23, 25, 53, 110, 143, 445, 587, 2375, 3306, 5432, 5672, 6379, 9200, 11211, 27017])
def test_ports_of_other_services_are_refused_unless_listed(port):
    with pytest.raises(ValueError, match=str(port)):
        read_address(f"https://a.test:{port}/")
    assert read_address(f"https://a.test:{port}/", ports=frozenset({port})).port == port
    with pytest.raises(ValueError, match="443"):
        read_address("https://a.test/", ports=frozenset({port}))


def test_https_may_be_required():
    assert read_address("https://a.test/", require_https=True).scheme == "https"
    with pytest.raises(ValueError, match=r"start with https://\Z"):
        read_address("http://a.test/", require_https=True)


def test_a_password_shows_in_no_repr():
    assert "canary" not in repr(read_address("https://u:canary@a.test/"))


@given(st.text(max_size=80) | st.from_regex(r"https?://[!-~]{0,60}", fullmatch=True))
def test_nothing_else_is_raised_and_what_is_read_reads_the_same_again(text):
    try:
        address = read_address(text)
    except ValueError:
        return
    again = read_address(address.url)
    assert (again.url, again.host, again.port, again.user) == (address.url, address.host, address.port, None)
