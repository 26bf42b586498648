"""Runs the commands of operations against a server, over its API, instead of on the database."""

import asyncio
import os
import stat
import tomllib
from collections.abc import AsyncIterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import UNSET

from boathook.cli.context import API_KEY_VARIABLE, SERVER_VARIABLE, RemoteOptions, UsageError, warn_once
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import BoathookError, ConfigError, FetchFailed, InvalidValue
from boathook.domain.redaction import RedactedStruct
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.wire import (
    BASE,
    CLIENT_HEADER,
    PATH_FIELD,
    QUERY_METHODS,
    VERSION_HEADER,
    own_version,
)
from boathook.service.fields import Field, fields_of
from boathook.service.id_prefixes import read_range
from boathook.service.remote import HttpResponse, RemoteClient, read_address

_TIMEOUT_S: Final = 60.0
_JOB_INTERVAL_S: Final = 0.5
_MAX_ANSWER: Final = 16_777_216
_MAX_PROFILES: Final = 65_536
"""Maximum bytes of the file of profiles."""
_SUCCESS: Final = range(200, 300)
_REDIRECTS: Final = range(300, 400)
_NO_CONTENT: Final = 204


class RemoteError(BoathookError):
    """The server rejected the request, or could not be asked; the message is the server's, or says why."""


class RemoteServer(RedactedStruct, frozen=True):
    """A server, and the key that is sent to it and to no other."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"key"})

    url: str
    key: str


class _Profile(RedactedStruct, frozen=True, forbid_unknown_fields=True):
    hidden_fields: ClassVar[frozenset[str]] = frozenset({"api_key"})

    server: str
    api_key: str


class _Profiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profiles: dict[str, _Profile] = {}


def profiles_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file of profiles."""
    folder = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "boathook" / "profiles.toml"


def choose_server(
    options: RemoteOptions, settings: Settings, environment: Mapping[str, str] = os.environ
) -> RemoteServer:
    """Return the server of a command, and its key.

    Args:
        options: what the command line says.
        settings: resolve keys that are ``env:NAME`` or ``file:PATH``.
        environment: has ``BOATHOOK_SERVER`` and ``BOATHOOK_API_KEY``, which belong together.

    Raises:
        UsageError: the options contradict each other, the key is missing, or the URL is not safe to send it to.
        ConfigError: the profile or the key cannot be read.
    """
    if options.profile is not None:
        if options.server is not None or options.api_key is not None:
            raise UsageError("--profile has a server and a key of its own; leave out --server and --api-key")
        profile = _read_profile(profiles_file(environment), options.profile)
        origin = f"profile {options.profile}"
        return RemoteServer(
            check_url(profile.server, f"{origin}: server"), _resolve(settings, profile.api_key, f"{origin}: api_key")
        )
    usual = environment.get(SERVER_VARIABLE)
    label = "--server" if options.server is not None else SERVER_VARIABLE
    url = check_url(options.server or usual or "", label)
    if options.api_key is not None:
        return RemoteServer(url, _resolve(settings, options.api_key, "--api-key"))
    if API_KEY_VARIABLE not in environment:
        raise UsageError(f"a server needs a key: add --api-key, or set {API_KEY_VARIABLE}")
    if usual and check_url(usual, SERVER_VARIABLE) != url:
        raise UsageError(f"{API_KEY_VARIABLE} is the key of {SERVER_VARIABLE}, which is another server; add --api-key")
    return RemoteServer(url, _resolve(settings, environment[API_KEY_VARIABLE], API_KEY_VARIABLE))


def _resolve(settings: Settings, reference: str, label: str) -> str:
    key = settings.resolve(reference, label).strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{label}: invalid key; write the key, env:NAME or file:PATH")
    return key


def check_url(url: str, label: str) -> str:
    """Return the base URL of a server without a slash at its end. Raises UsageError if a key must not be sent there."""
    try:
        address = read_address(url)
        parts = urlsplit(address.url)
    except ValueError as error:
        raise UsageError(f"{label}: {error}") from None
    if address.user or "@" in urlsplit(url).netloc:
        raise UsageError(f"{label}: the URL must not have a user; the key goes into --api-key")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise UsageError(f"{label}: the URL must not have a query or a fragment")
    if parts.scheme != "https" and not _is_loopback(address.host):
        raise UsageError(f"{label}: the key would be readable on the way to {address.host}; use https")
    return address.url.rstrip("/")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read_profile(file: Path, name: str) -> _Profile:
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
                raise ConfigError(f"{file}: others could read its keys; it must be yours, with mode 0600: chmod 600")
            text = opened.read(_MAX_PROFILES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; write [profiles.{name}] with server and api_key there") from None
    if len(text) > _MAX_PROFILES:
        raise ConfigError(f"{file}: it is larger than {_MAX_PROFILES:,} bytes")
    try:
        profiles = msgspec.convert(tomllib.loads(text.decode()), _Profiles).profiles
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if name not in profiles:
        raise ConfigError(f"{file}: there is no profile {name}; there are: {', '.join(profiles) or 'none'}")
    return profiles[name]


class RemoteRunner:
    """Runs operations over the API of a server.

    Args:
        server: the server.
        settings: the proxy and the certificates.

    Raises:
        ConfigError: the proxy cannot be read.
    """

    def __init__(self, server: RemoteServer, settings: Settings) -> None:
        self._server = server
        self._client = RemoteClient(settings)

    async def complete(self, value: msgspec.Struct) -> Any:
        """Return an input whose ids are whole. Raises UsageError for the beginning of one."""
        for field in fields_of(type(value)):
            entry, rule = getattr(value, field.name), field.item_rule if field.is_list else field.rule
            for word in entry if field.is_list and entry else [entry]:
                if word and rule.prefix and not _is_whole(rule.prefix, word):
                    raise UsageError(f"{word} is the beginning of an id; a server takes whole ids")
        return value

    async def act(self, operation: Operation[Any, Any], value: Any) -> Any:
        """Return the result of an operation.

        Raises:
            InvalidValue: a field of the input is invalid; names the field.
            NotFound: the path would name an object that cannot exist.
            RemoteError: the server rejected the request, or did not answer as boathook does.
        """
        operation.check_input(value)
        assert operation.http is not None, "an operation without a route has no command that runs remotely"
        target, body = _request(operation, value)
        if operation.http.status == _NO_CONTENT:
            await self._ask(operation.http.method, target, body, None)
            shared = set(operation.result.__struct_fields__) & set(value.__struct_fields__)
            return operation.result(**{name: getattr(value, name) for name in shared})
        return await self._ask(operation.http.method, target, body, operation.result)

    async def drive(self, operation: Operation[Any, Any], value: Any) -> AsyncIterator[Any]:
        """Act on many objects by a job of the server; yield what is done until it has ended.

        Raises:
            RemoteError: as `act`, or the job was stopped or failed.
        """
        job_id = (await self.act(operation, value)).job
        if job_id is not None:
            async for job in self.follow(job_id):
                yield job.result_of(operation)

    async def follow(self, job_id: str) -> AsyncIterator["Job"]:
        """Yield the progress of a job of the server until it has ended. Raises RemoteError as `drive` does."""
        while True:
            job: Job = await self._ask("GET", f"{BASE}/bulk-job/{job_id}", b"", Job)
            yield job
            if job.state == "finished":
                return
            if job.state != "running":
                raise RemoteError(f"the job {job_id} was not finished: {job.error or job.state}")
            await asyncio.sleep(_JOB_INTERVAL_S)

    async def _ask(self, method: str, target: str, body: bytes, kind: Any) -> Any:
        headers = {"authorization": f"Bearer {self._server.key}", CLIENT_HEADER: own_version()}
        if body:
            headers["content-type"] = "application/json"
        url = self._server.url + target
        try:
            answer = await self._client.request(
                method, url, headers=headers, body=body, timeout_s=_TIMEOUT_S, max_bytes=_MAX_ANSWER
            )
        except FetchFailed as error:
            raise RemoteError(str(error)) from None
        self._compare_versions(answer)
        if answer.status not in _SUCCESS:
            raise self._error(answer, f"{method} {target.partition('?')[0]}")
        if kind is None:
            return None
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (msgspec.DecodeError, RecursionError):
            raise RemoteError(f"{self._server.url} did not answer as boathook {own_version()} does") from None

    def _compare_versions(self, answer: HttpResponse) -> None:
        version = answer.headers.get(VERSION_HEADER)
        if version is not None and version != own_version():
            warn_once(f"{self._server.url} runs boathook {version}, this is {own_version()}; they may differ")

    def _error(self, answer: HttpResponse, request: str) -> BoathookError:
        """Return the error that the operation would have raised on the database, by the response."""
        if answer.status in _REDIRECTS:
            return RemoteError(f"{self._server.url} redirects, which is not followed: set the URL that it redirects to")
        try:
            document = msgspec.json.decode(answer.body, type=_ErrorAnswer)
        except (msgspec.DecodeError, RecursionError):
            return RemoteError(f"{self._server.url} answered with status {answer.status}, not as boathook does")
        if isinstance(document.detail, str):
            if document.detail == "unknown route":
                return RemoteError(f"{self._server.url} has no {request}: it runs another version of boathook")
            text = document.detail
            return RemoteError(f"{self._server.url}: {text}" if answer.status in {401, 403} else text)
        problem = document.detail[0] if document.detail else _Problem(loc=[], msg=f"status {answer.status}")
        return InvalidValue(problem.msg, *problem.loc[1:])


def _is_whole(prefix: str, word: str) -> bool:
    """Return whether a word is a whole id, or a uid. Raises InvalidValue if it cannot begin an id."""
    if prefix == ids.DELIVERY:
        try:
            ids.read_delivery(word)
        except ValueError:
            read_range(prefix, word.removesuffix("_"))
            return False
        return True
    if prefix == ids.EVENT and word.startswith(f"{ids.MESSAGE}_"):
        prefix = ids.MESSAGE
    elif prefix != ids.EVENT and not word.startswith(f"{prefix}_"):
        return True
    first, last = read_range(prefix, word)
    return first == last


class Job(msgspec.Struct, frozen=True):
    """The progress of a job of a server."""

    state: str
    done: int
    skipped: int
    error: str
    added: int | None = None
    revived: int | None = None
    routed: int | None = None

    def result_of(self, operation: Operation[Any, Any]) -> Any:
        """Return what it has done as a result of its operation."""
        numbers = {
            "done": self.done, "left": self.skipped, "failed": self.skipped, "added": self.added,
            "revived": self.revived, "routed": self.routed,
        }  # fmt: skip
        own = {field.name for field in operation.result_fields}
        counts = {name: number for name, number in numbers.items() if number is not None and name in own}
        return operation.result(dry_run=False, matching=self.done, **counts)


class _Problem(msgspec.Struct, frozen=True):
    loc: list[str]
    msg: str


class _ErrorAnswer(msgspec.Struct, frozen=True):
    detail: str | list[_Problem]


def _request(operation: Operation[Any, Any], value: Any) -> tuple[str, bytes]:
    """Return path and query, and the body, of the request for an operation."""
    assert operation.http is not None, "checked by the caller"
    route, _, fixed = operation.http.path.partition("?")
    parts = set(PATH_FIELD.findall(route))
    path = PATH_FIELD.sub(lambda match: quote(str(getattr(value, match[1])), safe=""), route)
    rest = [(field, getattr(value, field.name)) for field in operation.fields if field.name not in parts]
    rest = [(field, entry) for field, entry in rest if _is_set(field, entry)]
    if operation.http.method in QUERY_METHODS:
        pairs = [f"{field.public_name}={quote(_text(entry), safe='')}" for field, entry in rest]
        query = "&".join([*filter(None, [fixed]), *pairs])
        return f"{BASE}{path}" + (f"?{query}" if query else ""), b""
    body = {**operation.http.body, **{field.public_name: entry for field, entry in rest}}
    return f"{BASE}{path}", msgspec.json.encode(body) if body or len(operation.fields) > len(parts) else b""


def _is_set(field: Field, entry: Any) -> bool:
    """Return whether a request has a value: in a change, None removes one."""
    return entry is not UNSET and (entry is not None or field.default is UNSET)


def _text(value: Any) -> str:
    """Return a value as the query of a route has it."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, list):
        return ",".join(map(str, plain))
    return str(plain).lower() if isinstance(plain, bool) else str(plain)
