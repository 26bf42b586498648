"""Signing in to the console: valid and invalid sign-ins, and attacks by foreign pages."""

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Browser

from boathook.service.access.sign_in_link import LINK_PATH, create_token
from tests.acceptance.conftest import BoathookProcess, shared_boathook  # noqa: F401 - a fixture
from tests.acceptance.test_readiness import HELD_UP
from tests.browser.conftest import ADMIN, PASSWORD, CheckedPage, ConsoleServer
from tests.support import until

pytestmark = pytest.mark.extended("the pages are seen by the tour of every page and tested on PostgreSQL")


def test_an_admin_signs_in_and_out(anonymous_page: CheckedPage, console: ConsoleServer):
    page = anonymous_page.go("/operators")
    page.wait_for_url("**/console/sign-in?next=*")
    page.get_by_label("Name").fill(ADMIN)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Operators").wait_for()
    page.get_by_text(ADMIN, exact=True).first.click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/console/sign-in")
    anonymous_page.go("/operators").wait_for_url("**/console/sign-in?next=*")


def test_a_wrong_password_and_an_unknown_name_look_alike(console: ConsoleServer):
    texts = set()
    for name in (ADMIN, "nobody"):
        answer = post(console, "/console/sign-in", {"name": name, "password": "wrong wrong wrong"})
        assert answer.status_code == 401
        texts.add(answer.text.replace(name, "NAME"))
    assert len(texts) == 1


def test_guessing_is_slowed_down(console: ConsoleServer):
    statuses = [
        post(console, "/console/sign-in", {"name": "guessed", "password": f"guess {n:03}"}).status_code
        for n in range(14)
    ]
    assert statuses[0] == 401
    assert statuses[-1] == 429


def test_a_viewer_cannot_open_the_operators_page(anonymous_page: CheckedPage, console: ConsoleServer):
    console.add_operator("vera", "viewer")
    console.sign_in(anonymous_page.page, "vera")
    anonymous_page.expected.add("403")
    page = anonymous_page.go("/operators")
    page.get_by_role("heading", name="Not allowed").wait_for()
    assert page.get_by_role("link", name="Operators").count() == 0


def test_a_form_of_another_page_or_session_is_refused(anonymous_page: CheckedPage, console: ConsoleServer):
    console.sign_in(anonymous_page.page)
    cookies = {one["name"]: one["value"] for one in anonymous_page.page.context.cookies()}
    token = anonymous_page.go("/account").locator("meta[name=csrf-token]").get_attribute("content")
    path, fields = "/console/account/sign-out-everywhere", {"csrf": token}
    assert post(console, path, fields, cookies).status_code == 303
    for wrong in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert post(console, path, fields, cookies, **wrong).status_code == 403
    bare = httpx.post(f"{console.base}{path}", data=fields, cookies=cookies)
    assert bare.status_code == 403
    assert post(console, path, {"csrf": "0" * 64}, cookies).status_code == 403
    assert post(console, path, {}, cookies).status_code == 403


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example", "/console/../x\\", "/consolex", "javascript:1"]
)
def test_signing_in_never_redirects_to_another_site(console: ConsoleServer, wanted: str):
    answer = post(console, "/console/sign-in", {"name": ADMIN, "password": PASSWORD, "next": wanted})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")


def test_disabling_an_operator_ends_its_session(anonymous_page: CheckedPage, console: ConsoleServer):
    console.add_operator("otto", "operator")
    console.sign_in(anonymous_page.page, "otto")
    anonymous_page.go("/account").get_by_role("heading", name="Your account").wait_for()
    console.running.cli("operators", "disable", "otto")
    anonymous_page.go("/account").wait_for_url("**/console/sign-in?next=*")


def test_the_last_admin_cannot_be_kept_out(console: ConsoleServer):
    done = console.running.cli("operators", "disable", ADMIN, check=False)
    assert done.returncode == 1
    assert "only admin" in done.stderr


def test_every_page_carries_a_strict_policy(console: ConsoleServer):
    answer = httpx.get(f"{console.base}/console/sign-in")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"


def post(
    console: ConsoleServer, path: str, fields: dict[str, str], cookies: dict[str, str] | None = None, **headers: str
) -> httpx.Response:
    given = {"origin": console.base} | {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{console.base}{path}", data=fields, cookies=cookies, headers=given, timeout=300)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"a=" + b"x" * 1_100_000, "application/x-www-form-urlencoded", 413),
        (b'{"csrf": 1}', "application/json", 415),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x", 415),
        (b"name=%ff&a=\xff", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a%d=1" % n for n in range(3_000)), "application/x-www-form-urlencoded", 400),
    ],
)
def test_an_invalid_form_body_is_refused_with_a_page(console: ConsoleServer, body: bytes, kind: str, status: int):
    headers = {"origin": console.base, "content-type": kind}
    answer = httpx.post(f"{console.base}/console/sign-in", content=body, headers=headers)
    assert answer.status_code == status
    assert "text/html" in answer.headers["content-type"]


def test_static_files_are_immutable_only_under_their_hash(console: ConsoleServer):
    page = httpx.get(f"{console.base}/console/sign-in").text
    path = re.search(r'href="(/console/static/console\.css\?v=\w+)"', page)
    assert path is not None
    assert "immutable" in httpx.get(f"{console.base}{path[1]}").headers["cache-control"]
    assert httpx.get(f"{console.base}/console/static/console.css").headers["cache-control"] == "no-cache"
    for wrong, status in {"../templates/base.html": 404, "..%2fapp.py": 400, "none.css": 404}.items():
        assert httpx.get(f"{console.base}/console/static/{wrong}").status_code == status


def test_csp_reports_are_counted_and_size_limited(console: ConsoleServer):
    def reports() -> float:
        page = httpx.get(f"{console.base}/metrics").text
        return sum(
            float(line.split()[1]) for line in page.splitlines() if line.startswith("boathook_csp_reports_total")
        )

    before = reports()
    for body in (b'{"csp-report": {"effective-directive": "script-src"}}', b"nonsense", b"[" * 10_000):
        assert httpx.post(f"{console.base}/console/csp-reports", content=body).status_code == 204
    assert httpx.post(f"{console.base}/console/csp-reports", content=b"x" * 20_000).status_code == 413
    until(lambda: reports() == before + 3)


def test_a_page_that_waits_for_the_console_becomes_that_page(
    shared_boathook: Callable[..., BoathookProcess],  # noqa: F811
    browser: Browser,
):
    running = shared_boathook(roles="gateway,console", start=False)
    (running.folder / "sitecustomize.py").write_text(HELD_UP)
    running.start(wait=False)
    until(lambda: httpx.get(f"{running.base}/healthz", timeout=300).status_code == 200)
    token = create_token(running.folder / "data")
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{running.base}{LINK_PATH}?token={token}")
        page.get_by_text("boathook is starting").wait_for()
        (running.folder / "go").touch()
        page.wait_for_url("**/console")
        page.get_by_text("boathook dev").first.wait_for()
