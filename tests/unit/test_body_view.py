"""Request contents as operators see them, and as curl commands that send them again."""

import json
import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.domain import content_filter
from boathook.domain.content_filter import ContentFilter
from boathook.service import body_view
from boathook.service.body_view import MASK, MAX_BYTES, BodyFormat, CurlRequest, Shell, render, render_command


def test_json_is_shown_indented_or_raw():
    body = b'{"a" :1}'
    assert render(body, len(body)).text == '{\n  "a": 1\n}'
    assert render(body, len(body), "raw").text == '{"a" :1}'
    assert render(body, len(body), "hex").text.startswith("00000000  7b 22 61 22")


@pytest.mark.parametrize("body", [b"\x00\x01binary", b"caf\xe9", b"ok\x1b[31m", b'{"a":"\x00"}'])
def test_binary_is_shown_in_hex(body):
    found = render(body, len(body))
    assert found.view is BodyFormat.HEX
    assert found.views == (BodyFormat.HEX, BodyFormat.RAW)
    assert found.text.startswith("00000000")
    assert all(one.isprintable() or one == "\n" for one in render(body, len(body), "raw").text)


def test_invalid_json_is_shown_with_the_error():
    problem = render(b"{oops}", 6, content_type="application/json").problem
    assert problem == "Invalid JSON: 'oops}' is not JSON, after 1 characters."
    assert render(b"hello", 5, content_type="text/plain").problem is None


def test_the_first_256_kib_of_a_huge_body_are_shown():
    body = b"[" + b'"\xc3\xa9",' * 100_000 + b"1]"
    found = render(body[:MAX_BYTES], len(body))
    assert found.view is BodyFormat.PRETTY
    assert found.is_cut


def test_a_character_split_by_the_cut_is_dropped():
    body = ("é" * 200_000).encode()
    assert render(body[: MAX_BYTES - 1], len(body)).view is BodyFormat.RAW


@given(st.binary(max_size=200))
def test_nothing_of_a_dump_is_lost(body):
    rows = [line[10:58] for line in body_view.hex_dump(body).splitlines()]
    assert bytes.fromhex("".join(rows)) == body


def test_secrets_are_masked_by_the_names_of_headers():
    headers = {"Authorization": "Bearer x", "webhook-signature": "v1,x", "X-Api-Key": "x", "content-type": "text/plain"}
    assert body_view.mask(headers) == dict.fromkeys(list(headers)[:3], MASK) | {"content-type": "text/plain"}


@pytest.mark.parametrize(
    ("body", "text", "is_there"),
    [
        (b'{"note":"Needle"}', "nEEDLE", True),
        (b"\x00needle\xff", "needle", True),
        (b'{"note":"caf\\u00C9"}', "Café", True),
        ('{"note":"ПРИВЕТ"}'.encode(), "привет", True),
        (b'{"note":"\\u043f\\u0440\\u0438\\u0432\\u0435\\u0442 \\ud83d\\ude00"}', "ПРИВЕТ \N{GRINNING FACE}", True),
        (b'{"note":"say \\"hi\\""}', 'say "HI"', True),
        (b'{"note":"needl"}', "needle", False),
        (b'{"note":"\\ud83d"}', "é", False),
    ],
)
def test_a_text_is_found_in_any_case_and_as_json_escapes_it(body, text, is_there):
    assert content_filter.contains(body, text) is is_there


BODY = b'{"data":{"object":{"customer":"cus_1","paid":true,"amount":100,"gone":null,"lines":[{"sku":"a b"}]}},"a\\u0062":"c"}'


@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        ("data.object.customer = cus_1", True),
        ("$.data.object.customer=cus_1", True),
        ('data.object.customer = "cus_1"', True),
        ("data.object.customer = cus_", False),
        ("data.object.customer = CUS_1", False),
        ("data.object.paid = true", True),
        ("data.object.amount = 100", True),
        ("data.object.amount = 10", False),
        ("data.object.gone = null", True),
        ("data.object.missing = null", False),
        ("data.object.lines.0.sku = a b", True),
        ("data.object.lines.1.sku = a b", False),
        ("ab = c", True),
        ("data = {}", False),
    ],
)
def test_a_value_is_found_at_its_path(condition, is_met):
    parsed = content_filter.parse_condition(condition)
    assert parsed is not None
    assert parsed.matches(BODY) is is_met
    assert parsed.matches(b"not JSON: cus_1 true 100 null a b c") is False


@pytest.mark.parametrize("text", ["", "cus_1", "a =", "= b", "a..b = c", ".a = b", "a b = c", "'a = b'"])
def test_other_texts_are_not_conditions(text):
    assert content_filter.parse_condition(text) is None


def test_content_filter_round_trips_as_json():
    condition = content_filter.parse_condition("a.b = c")
    assert condition is not None
    made = ContentFilter(text="x", words="y", word_keys=("y", "z"), conditions=(condition,))
    assert ContentFilter.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert not made.is_empty
    assert ContentFilter().is_empty


HOSTILE = st.text(alphabet="a'\"\\ \n\t$`!*?~#&|;<>(){}[]%^é=@-", max_size=40)


@pytest.mark.parametrize("shell", [name for name in ("sh", "dash", "bash", "zsh", "ksh", "fish") if shutil.which(name)])
def test_the_shell_passes_the_sent_request_to_curl(shell, tmp_path):
    """A fake curl records its arguments."""
    fake = tmp_path / "curl"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    @given(body=HOSTILE, value=HOSTILE)
    def holds(body: str, value: str) -> None:
        headers = {"x-odd": value.replace("\n", " ").strip() or "x"}
        request = CurlRequest(url="http://h/in/it's?a=1&b=$x", headers=headers, body=body.encode(), file="e.bin")
        kind = Shell.FISH if shell == "fish" else Shell.SH
        done = subprocess.run(
            [shell, "-c", render_command(request, kind, has_secrets=True)],
            env=environment,
            capture_output=True,
            check=True,
        )
        words = done.stdout.decode().split("\0")[:-1]
        assert words[words.index("--url") + 1] == request.url
        assert words[words.index("--header") + 1] == f"x-odd: {headers['x-odd']}"
        assert words[words.index("--data-raw") + 1] == body

    holds()


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl to read its own file")
def test_curl_reads_the_generated_config_file(tmp_path):
    import http.server
    import threading

    heard: list[tuple[dict[str, str], bytes]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    bodies = [b'@not-a-file "quoted" \\n back\\slash\r\n\ttab $x `y`', b"\x00\xff" * 500]
    try:
        for body in bodies:
            request = CurlRequest(
                url=f"http://127.0.0.1:{server.server_port}/", headers={"x-odd": 'a "b" \\'}, body=body, file="e.bin"
            )
            (tmp_path / "e.bin").write_bytes(body)
            (tmp_path / "e.curl").write_text(render_command(request, Shell.CONFIG, has_secrets=True))
            command = ["curl", "-sS", "--noproxy", "*", "--config", "e.curl"]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
            subprocess.run(
                ["sh", "-c", render_command(request, has_secrets=True) + " -sS --noproxy '*'"], cwd=tmp_path, check=True
            )
    finally:
        server.shutdown()
        server.server_close()
    assert [body for _, body in heard] == [body for body in bodies for _ in range(2)]
    assert {headers["x-odd"] for headers, _ in heard} == {'a "b" \\'}


def test_a_binary_or_large_body_is_read_from_a_file():
    for body in (b"\x00", b"x" * (body_view.MAX_INLINE_BYTES + 1)):
        request = CurlRequest(url="http://h/", headers={}, body=body, file="e.bin")
        assert "--data-binary '@e.bin'" in render_command(request)
        assert body_view.needs_file(request)


def test_secrets_are_masked_in_a_command_unless_requested():
    request = CurlRequest(url="http://h/", headers={"authorization": "Bearer hush"}, body=b"", file="e.bin")
    assert "hush" not in render_command(request)
    assert "hush" in render_command(request, has_secrets=True)
