"""A visit of somebody who has signed in, and the routes of an area of the console."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.admin import operators
from boathook.admin.authorization import RULES, Permission, needs, role_may
from boathook.admin.console.frame import Frame, State, token_of
from boathook.admin.console.visits import Call, read_notice, read_proven_form, write_notice
from boathook.admin.desk import Work
from boathook.domain.roles import Role
from boathook.journal.alarms import Firing, count_firing
from boathook.journal.operators import Operator

BASE: Final = "/console"
SIGN_IN: Final = f"{BASE}/sign-in"
_NOTICE: Final = "boathook_notice"


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the navigation."""

    title: str
    path: str
    """Below /console."""
    key: str
    """Pressed after g, it leads there."""
    permission: Permission
    """Who has it is shown the entry."""


NAV: Final = (
    Place("Now", "", "n", Permission.DASHBOARD_VIEW),
    Place("Events", "/events", "e", Permission.EVENT_VIEW),
    Place("Dead letters", "/dead", "d", Permission.DEAD_LETTER_VIEW),
    Place("Rejections", "/rejections", "r", Permission.REJECTION_VIEW),
    Place("Conflicts", "/conflicts", "c", Permission.CONFLICT_VIEW),
    Place("Sources", "/sources", "s", Permission.SOURCE_VIEW),
    Place("Applications", "/applications", "a", Permission.APPLICATION_LIST),
    Place("Event types", "/event-types", "t", Permission.EVENT_TYPE_VIEW),
    Place("Alarms", "/alarms", "l", Permission.ALARM_VIEW),
    Place("Verify", "/verify", "v", Permission.VERIFY_VIEW),
    Place("Keys", "/keys", "k", Permission.KEY_VIEW),
    Place("Operators", "/operators", "o", Permission.OPERATOR_MANAGE),
    Place("Audit", "/audit", "u", Permission.AUDIT_VIEW),
    Place("Settings", "/settings", "i", Permission.SETTINGS_VIEW),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit(Call):
    """One request of somebody who has signed in."""

    operator: Operator
    session: str = field(repr=False)
    firing: Firing
    """The alarms that the navigation tells of."""

    @property
    def state(self) -> State:
        """The parts pages stand on."""
        return self.frame.state

    @property
    def role(self) -> Role:
        """What they may do."""
        return Role(self.operator.role)

    @property
    def actor(self) -> str:
        """Who acts, for the audit."""
        return f"console:{self.operator.name}"

    def may(self, permission: Permission) -> bool:
        """Return whether they may do this."""
        return role_may(self.role, permission)

    @asynccontextmanager
    async def work(self) -> AsyncIterator[Work]:
        """Lend one transaction of the organization; it commits at the end and rolls back on an error."""
        async with self.desk.work(actor=self.actor) as work:
            yield work

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page, with what each needs."""
        notice, kind = ("", "") if self.is_fragment else read_notice(self.request, _NOTICE)
        response = self.frame.show(template, status, notice=notice, notice_kind=kind, **self.values, **values)
        if notice:
            response.delete_cookie(_NOTICE, path=BASE)
        return response

    def to(self, url: str, notice: str = "", kind: str = "good") -> Response:
        """Send the browser to a page of ours, which shows a notice."""
        response = RedirectResponse(url, 303)
        if notice:
            value, is_secure = write_notice(notice, kind), self.request.url.scheme == "https"
            response.set_cookie(
                _NOTICE, value, max_age=60, path=BASE, secure=is_secure, httponly=True, samesite="strict"
            )
        return self.frame.guarded(response)

    @property
    def values(self) -> dict[str, Any]:
        """What every template may use."""
        place = max(
            (one for one in NAV if self.request.scope["path"].startswith(BASE + one.path)),
            key=lambda one: len(one.path),
        )
        return {
            "visit": self,
            "form_token": token_of(self.session),
            "nav": [one for one in NAV if self.may(one.permission)],
            "here": place,
            "can": lambda permission: self.may(Permission(permission)),
        }


Answer = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A page or an action."""

    method: str
    path: str
    permission: Permission
    answer: Answer


class Routes:
    """The pages and actions of one area; paths are below /console."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def get(self, path: str, permission: Permission) -> Callable[[Answer], Answer]:
        """Register a page."""
        return self._add("GET", path, permission)

    def post(self, path: str, permission: Permission) -> Callable[[Answer], Answer]:
        """Register what a form does."""
        return self._add("POST", path, permission)

    def _add(self, method: str, path: str, permission: Permission) -> Callable[[Answer], Answer]:
        def add(answer: Answer) -> Answer:
            self.entries.append(Entry(method, path, permission, answer))
            return answer

        return add


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie; over https it is one that no other host and no plain page can set."""
    return "__Host-boathook" if request.url.scheme == "https" else "boathook"


def route_of(frame: Frame, entry: Entry) -> Route:
    """Return an entry as a route: with who may come in, what a form must prove, and a page for each error."""

    @needs(entry.permission)
    async def endpoint(request: Request) -> Response:
        visit: Visit | None = None
        try:
            visit = await _admit(frame, request)
            if visit is None:
                return _to_sign_in(frame, request)
            if not visit.may(entry.permission):
                role = RULES[entry.permission].role
                raise HTTPException(403, f"this needs the role {role}; {visit.operator.name} is {visit.role}")
            return frame.guarded(await entry.answer(visit))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the browser gets a page and the log the rest
            values = {} if visit is None else {"notice": "", "notice_kind": "", **visit.values}
            return frame.show_error(error, **{"visit": None, **values})

    return Route(BASE + entry.path, endpoint, methods=[entry.method])


async def _admit(frame: Frame, request: Request) -> Visit | None:
    """Return the visit of somebody who has signed in; None of anybody else. Raises Forged for a foreign form."""
    session = request.cookies.get(cookie_name(request), "")
    if not session:
        return None
    desk = frame.state.desk
    async with desk.work() as work:
        operator = await operators.find_session(work, session, timedelta(hours=desk.settings.console.idle_hours))
        firing = await count_firing(work.connection) if operator is not None else Firing()
    if operator is None:
        return None
    form = await read_proven_form(frame, request, session)
    return Visit(frame=frame, request=request, operator=operator, session=session, form=form, firing=firing)


def _to_sign_in(frame: Frame, request: Request) -> Response:
    if "hx-request" in request.headers or "text/event-stream" in request.headers.get("accept", ""):
        return frame.guarded(Response(status_code=401, headers={"hx-redirect": SIGN_IN}))
    wanted = request.scope["path"] if request.method == "GET" else BASE
    query = f"?{request.url.query}" if request.url.query and request.method == "GET" else ""
    return frame.guarded(RedirectResponse(f"{SIGN_IN}?next={quote(wanted + query, safe='')}", 303))
