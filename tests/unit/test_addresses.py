"""Addresses: valid texts, parser differences between Python and libcurl, and denied networks."""

import socket
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.http_client import addresses
from boathook.http_client.addresses import find_denial, find_denial_on_host, read_address

DENIED = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255"),
    *("127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254", "169.254.170.2", "169.254.0.1"),
    *("172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.31.196.1", "192.52.193.1"),
    *("192.88.99.1", "192.168.0.1", "192.168.255.255", "192.175.48.1", "198.18.0.1", "198.19.255.255"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::2", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1"),
    *("0:0:0:0:0:ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "64:ff9b:1:abcd::a9fe:a9fe"),
    *(
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:1::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
    ),
    *("2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2620:4f:8000::1", "3fff::1", "3fff:fff::1", "5f00::1"),
    *("fc00::1", "fd00:ec2::254", "fdff::1", "fe80::1", "fe80::1%lo", "fe80::1%1", "febf::1", "fec0::1", "ff02::1"),
    *("4000::1", "8000::1", "e000::1", "1::1", "::ffff:0:0"),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.255.255.255"),
    *("128.0.0.1", "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.1", "172.15.255.255", "172.32.0.1"),
    *("192.0.1.1", "192.0.3.1", "192.167.255.255", "192.169.0.1", "198.17.255.255", "198.20.0.1", "223.255.255.255"),
    *("2606:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "2003::1", "2001:200::1", "3ffe::1"),
]
# All of these are loopback or the clouds' metadata to the resolver, and none of them parses as an address.
SPELLINGS = [
    *("0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "0X7F000001", "2130706433", "127.1", "127.0.1", "017700000001"),
    *("0177.1", "0x7f.1", "127.0x1", "00000177.0.0.1", "0x0000007f.0.0.1", "0", "0x0", "00", "0.0"),
    *("2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "0xa9.0xfe.0xa9.0xfe", "169.16689662", "169.254.43518"),
    *("１２７.0.0.1", "①②⑦.⓪.⓪.①", "127。0。0。1", "127．0．0．1"),  # noqa: RUF001 - such characters are the test
    *("10.1", "012.1", "0xa.1", "192.168.257", "0300.0250.0.1", "3232235777", "0xc0a80101"),
]


# As texts.


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
        "https://a.test/\x7f",
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


@pytest.mark.parametrize(
    ("url", "expected", "host"),
    [
        ("https://b\u00fccher.example/x", "https://xn--bcher-kva.example/x", "xn--bcher-kva.example"),
        ("https://B\u00dcCHER.Example:8443/", "https://xn--bcher-kva.example:8443/", "xn--bcher-kva.example"),
        ("https://stra\u00dfe.example/", "https://xn--strae-oqa.example/", "xn--strae-oqa.example"),
        ("https://foo_b\u00e4r.example/", "https://xn--foo_br-fua.example/", "xn--foo_br-fua.example"),
        ("https://\u4f8b\u3048.\u30c6\u30b9\u30c8/", "https://xn--r8jz45g.xn--zckzah/", "xn--r8jz45g.xn--zckzah"),
        ("https://\u2603.example/", "https://xn--n3h.example/", "xn--n3h.example"),
        ("https://a\u3002test/", "https://a.test/", "a.test"),
        ("https://a.test/\u00fcn\u00ef?q=\u00e9#\u00e9", "https://a.test/%C3%BCn%C3%AF?q=%C3%A9", "a.test"),
        ("https://a.test/\U0001f4a9/%41", "https://a.test/%F0%9F%92%A9/%41", "a.test"),
    ],
)
def test_characters_outside_ascii_are_encoded_as_browsers_do(url, expected, host):
    """Expected values by https://url.spec.whatwg.org/#host-parsing, and UTS #46 without transitional mapping."""
    address = read_address(url)
    assert (address.url, address.host) == (expected, host)


def test_credentials_outside_ascii_are_kept():
    assert read_address("https://j\u00f6rg:p\u00e4%40@b\u00fccher.example/").user == ("j\u00f6rg", "p\u00e4@")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://a\uff0fb.test/", "is read as 'a/b.test', which is not a host"),
        ("https://a\uff20b.test/", "is read as 'a@b.test', which is not a host"),
        ("https://a\u3000b.test/", "not an international domain name|not a host"),
        ("https://\u0301a.test/", "not an international domain name"),
        ("https://" + "\u00e9" * 80 + ".test/", "not an international domain name"),
        ("https://\ufffd.test/", "not an international domain name"),
        ("https://a.test/\ud800", "unpaired surrogate"),
        ("https://a.test/" + "\u00e9" * 1_000, "longer than 2000 characters once it is encoded"),
        ("https://a.test:0/", "port 0 cannot be requested"),
        ("https://a.test:000/", "port 0 cannot be requested"),
    ],
)
def test_addresses_that_cannot_be_encoded_are_refused(url, why):
    with pytest.raises(ValueError, match=why):
        read_address(url)


@pytest.mark.parametrize("name", [name for name in SPELLINGS if not name.isascii()])
def test_numbers_in_other_characters_are_denied(name):
    address = read_address(f"https://{name}/")
    assert (address.host, address.is_number) == ("127.0.0.1", True)
    assert find_denial(address.host)


@given(st.text(max_size=80) | st.from_regex(r"https?://[!-~]{0,60}", fullmatch=True))
def test_parsing_raises_only_value_error_and_is_idempotent(text):
    try:
        address = read_address(text)
    except ValueError:
        return
    again = read_address(address.url)
    assert (again.url, again.host, again.port, again.user) == (address.url, address.host, address.port, None)


# As numbers.


@pytest.mark.parametrize("address", DENIED)
def test_non_public_addresses_are_denied(address):
    assert find_denial(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address):
    assert find_denial(address) is None
    assert find_denial_on_host(address) is None


@pytest.mark.parametrize("name", SPELLINGS)
def test_alternative_spellings_resolve_to_denied_addresses(name):
    with pytest.raises(ValueError, match="address"):
        ip_address(name)
    assert find_denial(name) == "it is not an address"
    try:
        found = socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)
    except OSError:
        return
    assert all(find_denial(str(address[0])) for *_, address in found)


@pytest.mark.parametrize("name", ["localhost", "ip6-localhost", "localhost.", "LOCALHOST", "sub.localhost"])
def test_local_host_names_resolve_to_denied_addresses(name):
    try:
        found = socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)
    except OSError:
        pytest.skip("this resolver does not know the name")
    assert all(find_denial(str(address[0])) for *_, address in found)


@pytest.mark.parametrize("text", ["", " ", "127.0.0.1 ", "[::1]", "127.0.0.1:80", "1.1.1.1/32", "a", "1.1.1", "::1::"])
def test_invalid_addresses_are_denied(text):
    assert find_denial(text)


def test_allow_list_overrides_the_denied_networks():
    allow = (ip_network("127.0.0.0/8"), ip_network("fd00::/8"))
    assert find_denial("127.0.0.1", allow) is None
    assert find_denial_on_host("127.0.0.1", allow) is None
    assert find_denial("fd00::1", allow) is None
    for address in ("10.0.0.1", "::1", "::ffff:127.0.0.1", "fc00::1", "64:ff9b::7f00:1", "2002:7f00:1::"):
        assert find_denial(address, allow)


def test_this_machines_own_public_address_is_refused(monkeypatch):
    monkeypatch.setattr(addresses, "DENIED_4", ())
    assert find_denial("127.0.0.1") is None
    assert find_denial_on_host("127.0.0.1") == "this machine's own"
    assert find_denial_on_host("127.0.0.1", [ip_network("127.0.0.0/8")]) is None


def test_mutant_without_the_table_its_networks_are_allowed(monkeypatch):
    monkeypatch.setattr(addresses, "DENIED_4", ())
    monkeypatch.setattr(addresses, "DENIED_6", ())
    assert find_denial("169.254.169.254") is None
    assert find_denial("2002:7f00:1::") is None


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_addresses_python_calls_non_global_are_denied(address):
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert find_denial(str(address))


@given(st.text(max_size=60))
def test_no_text_makes_the_judgement_raise(text):
    assert find_denial(text) is None or isinstance(find_denial(text), str)
