"""Operators that several people, or several tabs of one browser, create at the same moment."""

import asyncio
from datetime import timedelta

import pytest

from boathook.domain.model import Role
from boathook.service import operators
from boathook.service.oidc import OidcIdentity
from boathook.service.operators import ClientInfo
from tests.postgres.portal_client import open_console

LIST = "/console/operators"
ADA = OidcIdentity("https://login.example.com 17", "ada@example.com", Role.OPERATOR, True, True)


async def test_two_admins_who_create_one_name_get_one_operator_and_one_error(db):
    async with open_console(db) as console:
        form = {"name": "zoe", "role": "viewer", "password": "correct horse battery"}
        admins = [await console.operator("anna"), await console.operator("ben")]
        pages = [await admin.get_page(LIST) for admin in admins]
        tokens = [page.partition('name="csrf" value="')[2].partition('"')[0] for page in pages]
        answers = await asyncio.gather(
            *(admin.post(LIST, data={"csrf": token, **form}) for admin, token in zip(admins, tokens, strict=True))
        )
        assert sorted(answer.status_code for answer in answers) == [303, 400]
        assert any("operator zoe already exists" in answer.text for answer in answers)


@pytest.mark.parametrize("is_known", [False, True])
async def test_first_sign_ins_through_the_provider_at_once_are_one_operator(db, is_known: bool):
    async with open_console(db) as console:
        if is_known:
            async with console.context.work(actor="test") as work:
                await operators.create(work, ADA.name, Role.VIEWER)

        async def sign_in() -> str:
            async with console.context.work(actor="console:sign-in") as work:
                browser = ClientInfo("127.0.0.1", "test")
                return (await operators.sign_in_with_oidc(work, ADA, timedelta(hours=1), browser)).operator.name

        assert await asyncio.gather(*(sign_in() for _ in range(4))) == [ADA.name] * 4
        assert await db.fetchval("select count(*) from boathook.operator") == 1
        binds = await db.fetchval("select count(*) from boathook.audit where action = 'operator.bind'")
        assert binds == int(is_known)
