"""The link of `boathook dev` signs in one browser, on this machine, within minutes; nothing else has its token."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from boathook.db.database import Database
from boathook.domain.errors import InvalidState
from boathook.domain.model import Role
from boathook.service.access import operators
from boathook.service.access.identity_provider import ProvidedIdentity
from boathook.service.access.sign_in_link import LIFETIME_S, LINK_PATH, create_token, redeem_token, revoke_tokens
from boathook.service.caller import HOST
from boathook.service.catalogue import operators as operator_actions
from boathook.service.catalogue.operators import OperatorNamed
from boathook_console import login
from boathook_console.shared import site
from tests.postgres.portal_client import ConsoleApp, open_console

LOCAL = "http://127.0.0.1:8080"
ELSEWHERE = {
    "another machine": {"client": ("192.0.2.7", 5000)},
    "another name": {"base": "http://rebound.example:8080"},
    "a tunnel": {"headers": {"x-forwarded-for": "192.0.2.7"}},
    "a proxy": {"headers": {"forwarded": "for=192.0.2.7"}},
}


@pytest.fixture
async def console(db: Database, tmp_path: Path) -> AsyncIterator[ConsoleApp]:
    async with open_console(db, server__data_dir=str(tmp_path)) as opened:
        yield opened


async def enter(
    console: ConsoleApp,
    token: str,
    *,
    base: str = LOCAL,
    client: tuple[str, int] = ("127.0.0.1", 5000),
    headers: dict[str, str] | None = None,
    method: str = "GET",
) -> httpx.Response:
    """Follow the link to the page after it."""
    transport = httpx.ASGITransport(console.app, client=client)
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as browser:
        answer = await browser.request(method, LINK_PATH, params={"token": token})
        return await browser.get("/console/operators") if answer.status_code == 303 else answer


async def test_it_signs_in_once_as_an_admin(console: ConsoleApp, tmp_path: Path):
    token = create_token(tmp_path)
    page = await enter(console, token)
    assert page.status_code == 200
    assert "boathook dev" in page.text
    assert (await enter(console, token)).status_code == 403
    assert (await enter(console, create_token(tmp_path))).status_code == 200, "the same operator again"


async def test_mutant_a_token_that_stays(console: ConsoleApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "unlink", lambda _path, **_options: None)
    token = create_token(tmp_path)
    assert [(await enter(console, token)).status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("way", ELSEWHERE)
async def test_a_cross_origin_use_is_refused_and_does_not_spend_it(console: ConsoleApp, tmp_path: Path, way: str):
    token = create_token(tmp_path)
    refused = await enter(console, token, **ELSEWHERE[way])
    assert refused.status_code == (421 if way == "another name" else 403)
    assert "set-cookie" not in refused.headers
    assert (await enter(console, token)).status_code == 200


@pytest.mark.parametrize("way", ELSEWHERE)
async def test_mutant_a_link_that_works_everywhere(
    console: ConsoleApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
):
    monkeypatch.setattr(login, "is_local", lambda _request: True)
    monkeypatch.setattr(site.AllowedHosts, "allows", lambda *_: True)
    assert (await enter(console, create_token(tmp_path), **ELSEWHERE[way])).status_code == 200


@pytest.mark.parametrize("base", ["http://localhost:8080", "http://[::1]:8080"])
async def test_other_names_of_this_machine_are_local(console: ConsoleApp, tmp_path: Path, base: str):
    assert (await enter(console, create_token(tmp_path), base=base)).status_code == 200


@pytest.mark.parametrize("asks", [{"method": "HEAD"}, {"headers": {"sec-purpose": "prefetch;prerender"}}])
async def test_a_prefetch_does_not_spend_it(console: ConsoleApp, tmp_path: Path, asks: dict[str, Any]):
    token = create_token(tmp_path)
    assert (await enter(console, token, **asks)).status_code == 204
    assert (await enter(console, token)).status_code == 200


@pytest.mark.parametrize("token", ["", "x", "../encryption.key", "\x00", "é" * 3000])
async def test_an_invented_token_is_refused(console: ConsoleApp, tmp_path: Path, token: str):
    create_token(tmp_path)
    assert (await enter(console, token)).status_code == 403


async def test_without_boathook_dev_there_is_no_token(console: ConsoleApp, tmp_path: Path):
    token = create_token(tmp_path)
    revoke_tokens(tmp_path)
    assert (await enter(console, token)).status_code == 403


async def test_a_disabled_developer_stays_out(console: ConsoleApp, tmp_path: Path):
    await enter(console, create_token(tmp_path))
    await console.operator("anna")
    async with console.context.work(actor="test", caller=HOST) as work:
        await operator_actions.disable(work, OperatorNamed(name="boathook dev"))
    assert (await enter(console, create_token(tmp_path))).status_code == 403


async def test_an_identity_provider_cannot_sign_in_as_the_developer(console: ConsoleApp, tmp_path: Path):
    await enter(console, create_token(tmp_path))
    same_name = ProvidedIdentity("https://idp.example/7", "boathook dev", Role.ADMIN, False, True)
    with pytest.raises(InvalidState, match="belongs to another operator"):
        async with console.context.work(actor="test") as work:
            await operators.sign_in_with_provider(work, same_name, None, None)


def test_a_token_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    token = create_token(tmp_path)
    later = time.time() + LIFETIME_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert not redeem_token(tmp_path, token)


async def test_of_many_gateways_one_accepts_it(tmp_path: Path):
    for _ in range(20):
        token = create_token(tmp_path)
        taken = await asyncio.gather(*(asyncio.to_thread(redeem_token, tmp_path, token) for _ in range(8)))
        assert sum(taken) == 1


def test_a_new_token_revokes_the_earlier_one_and_is_private(tmp_path: Path):
    earlier, token = create_token(tmp_path), create_token(tmp_path)
    (file,) = (tmp_path / "sign-in").iterdir()
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert token not in file.name + file.read_text()
    assert [redeem_token(tmp_path, one) for one in (earlier, token)] == [False, True]
