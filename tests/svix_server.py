"""Fake server of Svix's API: the objects that an import reads, with pages, errors and timeouts.

Written from the public source and OpenAPI of svix/svix-webhooks: ids are a prefix and 27 letters that rise with time,
`iterator` is the last row's id, sets come in any order, an Ed25519 secret shows its public half, sensitive headers show
their names, and an unknown route is a 404 without a body.
"""

import base64
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TOKEN = "testsk_a-token-of-an-organization.eu"
SENSITIVE = {"authorization", "x-api-key", "x-auth-token"}
_CREATED = "2026-01-31T12:00:00.000000Z"


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to one request."""

    status: int = 200
    value: Any = None
    """Its JSON; None for an empty body."""
    headers: Mapping[str, str] = field(default_factory=dict)


def _error(status: int, code: str, detail: str) -> Answer:
    return Answer(status, {"code": code, "detail": detail})


NOT_FOUND = _error(404, "not_found", "Entity not found")
NO_ROUTE = Answer(404)


class SvixServer:
    """One environment, changed by methods and read over HTTP.

    `script` is asked before each GET, by its path with the query; what it returns is answered instead.
    """

    def __init__(self) -> None:
        self.event_types: dict[str, dict[str, Any]] = {}
        self.apps: dict[str, dict[str, Any]] = {}
        self.endpoints: dict[str, dict[str, dict[str, Any]]] = {}
        """By owner and id; owners are ids of applications and ``operational``."""
        self.secrets: dict[str, str] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.transformations: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, Any] | None = None
        self.connectors: list[dict[str, Any]] = []
        self.page = 250
        self.script: Callable[[str], Answer | None] = lambda _: None
        self.asked: list[str] = []
        self._number = 0
        self._random = random.Random(7)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def new_id(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}_2svix{self._number:022d}"

    def add_type(self, name: str, **fields: Any) -> None:
        self.event_types[name] = {
            "name": name, "description": name.title(), "archived": False, "deprecated": False, "schemas": None,
            "featureFlag": None, "createdAt": _CREATED, "updatedAt": _CREATED, **fields,
        }  # fmt: skip

    def add_app(self, name: str, uid: str | None = None, **fields: Any) -> str:
        id = fields.get("id") or self.new_id("app")
        self.apps[id] = {
            "id": id, "uid": uid, "name": name, "metadata": {}, "createdAt": _CREATED, "updatedAt": _CREATED, **fields,
        }  # fmt: skip
        self.endpoints[id] = {}
        return id

    def add_endpoint(self, owner: str, url: str, secret: str | None = None, **fields: Any) -> str:
        id = fields.get("id") or self.new_id("ep")
        self.endpoints.setdefault(owner, {})[id] = {
            "id": id, "uid": None, "url": url, "description": "", "disabled": False, "version": 1, "metadata": {},
            "createdAt": _CREATED, "updatedAt": _CREATED, **fields,
        }  # fmt: skip
        self.secrets[id] = secret or make_secret(self._number)
        return id

    def drop_endpoint(self, owner: str, id: str) -> None:
        del self.endpoints[owner][id]

    def drop_app(self, id: str) -> None:
        del self.apps[id], self.endpoints[id]

    def answer(self, method: str, target: str) -> Answer:
        self.asked.append(target)
        if (scripted := self.script(target)) is not None:
            return scripted
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["api", "v1", "event-type"]:
                return self._list_types(query)
            case ["api", "v1", "event-type", name]:
                return Answer(200, self.event_types[name]) if name in self.event_types else NOT_FOUND
            case ["api", "v1", "app"]:
                return self._list(self.apps, query, "app_")
            case ["api", "v1", "app", app]:
                return Answer(200, self.apps[app]) if app in self.apps else NOT_FOUND
            case ["api", "v1", "app", app, "endpoint", *rest]:
                return self._endpoints(app, rest, query)
            case ["api", "v1", "operational-webhook", "endpoint", *rest] if "operational" in self.endpoints:
                return self._endpoints("operational", rest, query)
            case ["api", "v1", "environment", "export"] if method == "POST" and self.settings is not None:
                return Answer(200, {"version": 1, "settings": self.settings, "connectors": self.connectors})
            case _:
                return NO_ROUTE

    def _list_types(self, query: Mapping[str, str]) -> Answer:
        rows = {
            name: row if query.get("with_content") == "true" else row | {"schemas": None}
            for name, row in self.event_types.items()
            if not row["archived"] or query.get("include_archived") == "true"
        }
        return self._list(rows, query, "")

    def _list(self, rows: Mapping[str, dict[str, Any]], query: Mapping[str, str], prefix: str) -> Answer:
        limit, place = int(query.get("limit", 50)), query.get("iterator", "")
        if limit > 250 or not place.startswith(prefix if place else ""):
            return Answer(422, {"detail": [{"loc": ["query"], "msg": "invalid", "type": "value_error"}]})
        keys = sorted(key for key in rows if key > place)
        shown = keys[: min(limit, self.page)]
        data = [self._shuffled(rows[key]) for key in shown]
        last = shown[-1] if shown else None
        return Answer(200, {"data": data, "iterator": last, "done": len(shown) == len(keys)})

    def _shuffled(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with its sets in random order."""
        sets = {name: row[name] for name in ("eventTypes", "filterTypes", "channels", "featureFlags") if row.get(name)}
        return row | {name: self._random.sample(value, len(value)) for name, value in sets.items()}

    def _endpoints(self, owner: str, rest: list[str], query: Mapping[str, str]) -> Answer:
        if owner not in self.endpoints:
            return NOT_FOUND
        rows = self.endpoints[owner]
        if not rest:
            return self._list(rows, query, "ep_")
        if rest[0] not in rows:
            return NOT_FOUND
        match rest:
            case [id]:
                return Answer(200, self._shuffled(rows[id]))
            case [id, "secret"]:
                return Answer(200, {"key": public_half(self.secrets[id])})
            case [id, "headers"]:
                headers = self.headers.get(id, {})
                shown = {name: value for name, value in headers.items() if name.lower() not in SENSITIVE}
                return Answer(200, {"headers": shown, "sensitive": [name for name in headers if name not in shown]})
            case [id, "transformation"] if self.transformations:
                return Answer(200, self.transformations.get(id, {"code": None, "enabled": False}))
            case _:
                return NO_ROUTE


def make_secret(number: int) -> str:
    """Return a symmetric secret."""
    return "whsec_" + base64.b64encode(f"{number:024d}".encode()).decode()


def make_private_key(number: int) -> str:
    """Return an Ed25519 secret: seed and public key."""
    seed = bytes([number]) * 32
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return "whsk_" + base64.b64encode(seed + public).decode()


def public_half(secret: str) -> str:
    """Return what receivers verify with, as the API shows it."""
    if not secret.startswith("whsk_"):
        return secret
    return "whpk_" + base64.b64encode(base64.b64decode(secret.removeprefix("whsk_"))[32:]).decode()


def _handler(server: SvixServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 300

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            is_known = self.headers.get("authorization") == f"Bearer {TOKEN}"
            refused = _error(401, "authentication_failed", "Invalid token")
            self._reply(server.answer(self.command, self.path) if is_known else refused)

        do_POST = do_GET  # noqa: N815 - the name is the library's

        def _reply(self, answer: Answer) -> None:
            body = b"" if answer.value is None else json.dumps(answer.value).encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def serve() -> Iterator[SvixServer]:
    """Yield a server, for a fixture."""
    server = SvixServer()
    yield server
    server.close()
