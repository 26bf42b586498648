"""Operators that are created or changed at the same moment; their sessions and saved views."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from boathook.db.operators import Operator, SavedView, delete_view, list_views, save_view
from boathook.domain.errors import InvalidState
from boathook.domain.model import Role
from boathook.service.access import operators
from boathook.service.access.identity_provider import ProvidedIdentity
from boathook.service.access.operators import ClientInfo
from tests.postgres.portal_client import ConsoleApp, open_console
from tests.support import eventually

LIST = "/console/operators"
ADA = ProvidedIdentity("https://login.example.com 17", "ada@example.com", Role.OPERATOR, True, True)


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

        made = await asyncio.gather(*(sign_in_as(console, ADA) for _ in range(4)))
        assert [operator.name for operator in made] == [ADA.name] * 4
        assert await db.fetchval("select count(*) from boathook.operator") == 1
        binds = await db.fetchval("select count(*) from boathook.audit where action = 'operator.bind'")
        assert binds == int(is_known)


async def sign_in_as(console: ConsoleApp, person: ProvidedIdentity) -> Operator:
    async with console.context.work(actor="console:sign-in") as work:
        browser = ClientInfo("127.0.0.1", "test")
        return (await operators.sign_in_with_provider(work, person, timedelta(hours=1), browser)).operator


async def test_the_provider_cannot_take_over_the_name_of_another_subject(db):
    async with open_console(db) as console:
        async with console.context.work(actor="test") as work:
            await operators.create(work, ADA.name, Role.ADMIN, subject="https://login.example.com 18")
        with pytest.raises(InvalidState, match="belongs to another operator"):
            await sign_in_as(console, ADA)


async def test_who_is_in_no_group_any_more_cannot_sign_in(db):
    async with open_console(db) as console:
        assert (await sign_in_as(console, ADA)).role == Role.OPERATOR
        with pytest.raises(InvalidState, match="has no role here"):
            await sign_in_as(console, replace(ADA, role=None))


async def test_two_admins_who_revoke_each_others_role_leave_one(db):
    async with open_console(db) as console:
        for name in ("anna", "ben"):
            async with console.context.work(actor="test") as work:
                await operators.create(work, name, Role.ADMIN)

        async def revoke(name: str) -> None:
            async with console.context.work(actor="test") as work:
                await operators.set_role(work, name, Role.VIEWER)

        waiting = "select exists (select from pg_stat_activity where $1::int = any (pg_blocking_pids(pid)))"
        async with console.context.work(actor="test") as work:
            await operators.set_role(work, "ben", Role.VIEWER)
            pid = await work.connection.fetchval("select pg_backend_pid()")
            other = asyncio.create_task(revoke("anna"))

            async def is_settled() -> bool:
                return other.done() or await db.fetchval(waiting, pid)

            await eventually(is_settled)
        with pytest.raises(InvalidState, match="anna is the only admin"):
            await other


@pytest.mark.parametrize(
    ("change", "is_valid"),
    [
        ("update boathook.operator_session set seen_at = now() - interval '59 minutes'", True),
        ("update boathook.operator_session set seen_at = now() - interval '61 minutes'", False),
        ("update boathook.operator_session set expires_at = now()", False),
        ("update boathook.operator set disabled_at = now()", False),
    ],
)
async def test_a_session_ends_with_its_time_when_idle_or_with_its_operator(db, change: str, is_valid: bool):
    async with open_console(db) as console:
        async with console.context.work(actor="test") as work:
            operator = await operators.create(work, "anna", Role.ADMIN)
            begun = await operators.start_session(work, operator, timedelta(hours=8), ClientInfo("127.0.0.1", "test"))
        await db.execute(change)
        async with console.context.work() as work:
            found = await operators.find_session(work, begun.token, timedelta(hours=1))
    assert (found is not None) == is_valid


async def test_a_view_is_deleted_for_its_operator_only(db):
    async with open_console(db) as console, console.context.work(actor="test") as work:
        anna, ben = [await operators.create(work, name, Role.VIEWER) for name in ("anna", "ben")]
        view = SavedView("late", "state=dead")
        for operator in (anna, ben):
            await save_view(work.connection, operator.id, view, limit=5)
        assert await delete_view(work.connection, anna.id, "late")
        assert await list_views(work.connection, anna.id) == []
        assert await list_views(work.connection, ben.id) == [view]
