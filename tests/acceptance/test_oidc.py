"""Signing in to the console through an identity provider that others wrote."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from oidc_provider_mock import User, run_server_in_thread

from tests.acceptance.conftest import BoathookProcess
from tests.support import until

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the provider, which runs in a thread of the tests

PEOPLE = (
    User(sub="1", claims={"email": "ada@example.com", "email_verified": True, "groups": ["platform", "all"]}),
    User(sub="2", claims={"email": "bob@example.com", "email_verified": True, "groups": ["ops"]}),
    User(sub="3", claims={"email": "eve@example.com", "email_verified": True, "groups": ["sales"]}),
    User(sub="4", claims={"email": "new@example.com", "email_verified": False, "groups": ["ops"]}),
    User(sub="5", claims={"email": "owner@example.com", "groups": ["ops"]}),
)


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> Iterator[BoathookProcess]:
    with run_server_in_thread(user_claims=PEOPLE) as server:
        made = shared_boathook(
            roles="gateway,console,keeper",
            extra=f"""
                [outbound]
                allow = ["127.0.0.0/8", "::1/128"]
                [console]
                oidc_issuer = "http://localhost:{server.server_port}"
                oidc_client_id = "boathook"
                oidc_client_secret = "of the client"
                oidc_roles = {{ ops = "operator", platform = "admin" }}
            """,
        )
        until(lambda: httpx.get(f"{made.base}/console/sign-in").status_code == 200)
        yield made
    gc.collect()  # sockets that the provider leaves open are complained of here, and not in another test


class Traveller:
    """A browser on its way to the provider and back."""

    def __init__(self, running: BoathookProcess) -> None:
        self.running = running
        self.client = httpx.Client(timeout=300)

    def close(self) -> None:
        self.client.close()

    def leave(self, wanted: str = "/console/account") -> str:
        answer = self.client.get(f"{self.running.base}/console/sign-in/away", params={"next": wanted})
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def prove(self, page: str, subject: str) -> str:
        answer = self.client.post(page, data={"sub": subject})
        assert answer.status_code in {302, 303}, answer.text
        return str(answer.headers["location"])

    def return_to(self, address: str) -> httpx.Response:
        return self.client.get(address)

    def sign_in(self, subject: str) -> httpx.Response:
        return self.return_to(self.prove(self.leave(), subject))

    @property
    def account(self) -> str:
        return self.client.get(f"{self.running.base}/console/account").text


@pytest.fixture
def traveller(running: BoathookProcess) -> Iterator[Traveller]:
    with contextlib.closing(Traveller(running)) as traveller:
        yield traveller


@pytest.mark.parametrize(("subject", "name", "role"), [("1", "ada", "admin"), ("2", "bob", "operator")])
def test_operators_get_the_role_of_their_groups(traveller: Traveller, subject: str, name: str, role: str):
    answer = traveller.sign_in(subject)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/account")
    assert f"<dd>{name}@example.com</dd><dt>Role</dt><dd>{role}</dd>" in traveller.account


def test_a_user_without_a_mapped_group_is_refused(traveller: Traveller):
    answer = traveller.sign_in("3")
    assert answer.status_code == 403
    assert "eve@example.com has no role here" in answer.text


def test_an_unverified_email_makes_no_operator(running: BoathookProcess, traveller: Traveller):
    answer = traveller.sign_in("4")
    assert answer.status_code == 403
    assert "has not verified the e-mail address" in answer.text
    assert "new@example.com" not in running.cli("operators", "list").stdout


def test_an_email_of_unknown_proof_cannot_take_over_an_operator(running: BoathookProcess, traveller: Traveller):
    running.cli("operators", "create", "owner@example.com", "--role", "admin", "--no-password")
    answer = traveller.sign_in("5")
    assert answer.status_code == 403
    assert "belongs to another operator" in answer.text


def test_a_disabled_operator_cannot_sign_in(running: BoathookProcess, traveller: Traveller):
    assert traveller.sign_in("2").status_code == 303
    running.cli("operators", "disable", "bob@example.com")
    assert traveller.sign_in("2").status_code == 403
    running.cli("operators", "enable", "bob@example.com")


def test_a_code_works_once_and_only_in_its_browser(running: BoathookProcess, traveller: Traveller):
    address = traveller.prove(traveller.leave(), "1")
    with contextlib.closing(Traveller(running)) as another:
        assert another.return_to(address).status_code == 400
    assert traveller.return_to(address).status_code == 303
    assert traveller.return_to(address).status_code == 400


def test_it_asks_with_a_challenge_and_a_nonce(traveller: Traveller):
    query = parse_qs(urlsplit(traveller.leave()).query)
    assert query["code_challenge_method"] == ["S256"]
    assert len(query["nonce"][0]) >= 32
    assert len(query["state"][0]) >= 32
    assert query["redirect_uri"] == [f"{traveller.running.base}/console/sign-in/return"]
