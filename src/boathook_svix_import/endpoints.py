"""Imports the endpoints of one application, in one transaction."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from boathook.db import endpoints as stored
from boathook.db.applications import Application, PageRequest
from boathook.db.endpoints import Endpoint
from boathook.delivery.signer import make_ed25519_secret, read_signer
from boathook.domain.endpoints import OPERATIONAL_TYPES
from boathook.domain.errors import InvalidValue
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.domain.redaction import RedactedStruct
from boathook.domain.signing import PUBLIC_PREFIX
from boathook.service.sending import endpoint_secrets, endpoints
from boathook.service.sending.endpoint_values import read_url, read_values
from boathook.service.sending.endpoints import NewEndpoint
from boathook.service.unit_of_work import UnitOfWork
from boathook_svix_import import report
from boathook_svix_import.fields import read_endpoint, read_headers, read_secret, why_no_secret
from boathook_svix_import.reader import RemoteEndpoint
from boathook_svix_import.report import Kind, Outcome, Report, draft_report

_NEW_KEY: Final = (
    "{}: the endpoint is created disabled, with a new key; "
    "give the old one by --secrets, or the new one to the receiver, and enable it"
)
_NO_CODE: Final = "boathook does not support transformations"
_NO_CODE_ON: Final = (
    _NO_CODE + ": the endpoint is created disabled; enable it once its receiver accepts the plain payload"
)
_HIDDEN: Final = "its value is not shown; set it with `boathook endpoints headers`"


class Options(RedactedStruct, frozen=True, kw_only=True):
    """The options of an import."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secrets"})

    organization: str = DEFAULT_ORGANIZATION
    actor: str = "import"
    """The actor for the audit."""
    is_dry_run: bool = False
    """Whether every transaction is rolled back."""
    deletes: bool = False
    """Whether to delete objects here that the server has deleted."""
    is_disabled: bool = False
    """Whether endpoints are created disabled; existing ones stay enabled or disabled."""
    grace: timedelta = endpoint_secrets.DEFAULT_GRACE
    """How long an old secret stays valid after it was replaced on the server."""
    secrets: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Secrets that the server does not show, by the endpoint's id on the server."""


async def list_imported(work: UnitOfWork, application: Application) -> dict[str, Endpoint]:
    """Return an application's endpoints of earlier imports, by their ids on the server."""
    return await report.imported_endpoints(work, await _list_all(work, application))


async def _list_all(work: UnitOfWork, application: Application) -> list[Endpoint]:
    everything = PageRequest(None, is_ascending=True, limit=endpoints.MAX_ENDPOINTS)
    return await endpoints.list_page(work, application, everything)


class EndpointImporter:
    """Writes endpoints of one application.

    Args:
        work: the unit of work.
        report: the report of the transaction.
        application: the application that owns them.
        owner: the application's name in the report.
        options: the options of the import.
    """

    def __init__(
        self, work: UnitOfWork, report: Report, application: Application, owner: str, options: Options
    ) -> None:
        self._work = work
        self._report = report
        self._application = application
        self._owner = owner
        self._options = options
        self._known: Mapping[str, Endpoint] = {}
        self._others: Mapping[str | None, Endpoint] = {}
        self._written: set[str] = set()

    async def write(self, remotes: Sequence[RemoteEndpoint]) -> None:
        """Create or update endpoints; one that fails is reported, and the others are written."""
        rows = await _list_all(self._work, self._application)
        self._known = await report.imported_endpoints(self._work, rows)
        imported_ids = {self._known[remote.id].id for remote in remotes if remote.id in self._known}
        self._others = {row.uid: row for row in rows if row.uid is not None and row.id not in imported_ids}
        # Endpoints known by id first, because their uids may be used by others now.
        for remote in sorted(remotes, key=lambda remote: remote.id not in self._known):
            label = self._label(remote.wire.get("uid") or remote.id)
            async with draft_report(self._work, self._report, label) as draft:
                await self._write(remote, label, draft)

    async def delete_missing(self, missing: Sequence[Endpoint]) -> None:
        """Delete or report endpoints the server no longer has, unless another of its endpoints replaced them."""
        for endpoint in missing:
            if endpoint.shown_id in self._written:
                continue
            label = self._label(endpoint.uid or endpoint.shown_id)
            async with draft_report(self._work, self._report, label) as draft:
                if self._options.deletes:
                    await endpoints.delete(self._work, self._application, endpoint.shown_id)
                    draft.record(Kind.ENDPOINT, Outcome.DELETED, label)
                else:
                    draft.gone.append(label)

    def _label(self, name: str) -> str:
        return f"{self._owner}, endpoint {name}"

    async def _write(self, remote: RemoteEndpoint, label: str, draft: Report) -> None:
        values, headers = read_endpoint(remote.wire), read_headers(remote)
        desired = DesiredEndpoint(*values.value, headers.value, self._secret(remote))
        draft.add_not_moved(label, {**values.not_moved, **headers.not_moved, **self._unknown_types(desired.new)})
        endpoint = self._known.get(remote.id) or self._others.get(desired.new.uid)
        if endpoint is None:
            endpoint, not_imported = await self._create(remote, desired)
            draft.record_write(Kind.ENDPOINT, label, is_new=True)
        else:
            changed, not_imported = await self._update(remote, endpoint, desired)
            draft.record_write(Kind.ENDPOINT, label, is_new=False, fields=changed)
        draft.add_not_moved(label, not_imported)
        self._written.add(endpoint.shown_id)
        if remote.id not in self._known:
            await report.record_import(self._work, Kind.ENDPOINT, endpoint.shown_id, remote.id)
        if endpoint.imported_id != remote.id:
            await stored.set_imported_id(self._work.connection, endpoint.id, remote.id)

    def _unknown_types(self, new: NewEndpoint) -> dict[str, str]:
        unknown = [
            name for name in new.event_types or () if self._application.is_operational and name not in OPERATIONAL_TYPES
        ]
        return {"eventTypes": f"boathook sends no {', '.join(sorted(unknown))}"} if unknown else {}

    def _secret(self, remote: RemoteEndpoint) -> str | None:
        """Return the signing secret: as shown by the server, else as given; None if neither. Raises InvalidValue."""
        remote_secret, configured = read_secret(remote.secret), self._options.secrets.get(remote.id)
        if remote_secret is not None or configured is None:
            return remote_secret
        try:
            public = read_signer(configured).public
        except ValueError as error:
            raise InvalidValue(str(error), "--secrets", remote.id) from None
        if remote.secret is not None and remote.secret.startswith(PUBLIC_PREFIX) and public != remote.secret:
            raise InvalidValue(f"it is not the private key of {remote.secret}", "--secrets", remote.id)
        return configured

    async def _create(self, remote: RemoteEndpoint, desired: "DesiredEndpoint") -> tuple[Endpoint, dict[str, str]]:
        """Create an endpoint; return it, and why fields were not imported."""
        reasons = _reasons_to_disable(remote, has_secret=desired.secret is not None)
        secret = desired.secret
        if secret is None and (remote.secret or "").startswith(PUBLIC_PREFIX):
            secret = make_ed25519_secret()
        is_disabled = desired.new.is_disabled or self._options.is_disabled or bool(reasons)
        created = await endpoints.create(
            self._work,
            self._application,
            replace(desired.new, is_disabled=is_disabled),
            secret=secret,
            headers=desired.headers,
            known_types=desired.new.event_types or (),
        )
        return created, reasons | _hidden(remote, {}) | _unsupported_code(remote)

    async def _update(
        self, remote: RemoteEndpoint, endpoint: Endpoint, desired: "DesiredEndpoint"
    ) -> tuple[list[str], dict[str, str]]:
        """Update the fields that differ; return their names, and why other fields were not imported."""
        at = (self._work, self._application, endpoint.shown_id)
        signs = await endpoint_secrets.get_secret(*at)
        reasons = _reasons_to_disable(remote, has_secret=desired.secret is not None or signs == remote.secret)
        changes = await self._changes(endpoint, desired)
        if not reasons and self._follows(endpoint) and endpoint.is_disabled is not desired.new.is_disabled:
            changes["is_disabled"] = desired.new.is_disabled
        if changes:
            await endpoints.update(*at, changes, known_types=desired.new.event_types or ())
        changed = list(changes)
        current = endpoints.decrypt_headers(self._work, endpoint)
        headers = _with_hidden(remote, current, desired.headers)
        if headers != current:
            await endpoint_secrets.set_headers(*at, headers)
            changed.append("headers")
        if desired.secret is not None and read_signer(desired.secret).public != signs:
            await endpoint_secrets.rotate_secret(*at, secret=desired.secret, grace=self._options.grace)
            changed.append("secret")
        return changed, reasons | _hidden(remote, current) | _unsupported_code(remote)

    def _follows(self, endpoint: Endpoint) -> bool:
        # An endpoint that boathook disabled because its receiver fails must not be enabled by every import.
        return not self._options.is_disabled and endpoint.disabled_because in {None, "manual"}

    async def _changes(self, endpoint: Endpoint, desired: "DesiredEndpoint") -> dict[str, Any]:
        """Return the values that differ from the endpoint's."""
        changes = {}
        for name in desired.names:
            value = getattr(desired.new, name)
            columns = await read_values(self._work, {name: value}, known_types=desired.new.event_types or ())
            if any(
                _normal(getattr(endpoint, column)) != _normal(desired_value)
                for column, desired_value in columns.items()
            ):
                changes[name] = value
        user = read_url(self._work.app_context.settings, desired.new.url or "")[1]
        basic = None if user is None else {"username": user[0], "password": user[1]}
        if basic is not None and endpoints.decrypt_auth(self._work, endpoint).get("basic") != basic:
            changes["url"] = desired.new.url
        return changes


class DesiredEndpoint(RedactedStruct, frozen=True):
    """The desired values of an endpoint."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"headers", "secret"})

    new: NewEndpoint
    names: Sequence[str]
    """Names of the values in `new` that the server has."""
    headers: Mapping[str, str]
    secret: str | None


def _normal(value: object) -> object:
    """Return a value for comparison: event types and channels are unordered sets."""
    return frozenset(value) if isinstance(value, tuple) else value


def _reasons_to_disable(remote: RemoteEndpoint, *, has_secret: bool) -> dict[str, str]:
    """Return why an endpoint's messages would be wrong here, by field."""
    reasons = {}
    if not has_secret:
        reasons["secret"] = _NEW_KEY.format(why_no_secret(remote.secret))
    if remote.transformation is not None and remote.transformation.get("enabled"):
        reasons["transformation"] = _NO_CODE_ON
    return reasons


def _unsupported_code(remote: RemoteEndpoint) -> dict[str, str]:
    """Return that a transformation is not imported, if it is not enabled."""
    code = remote.transformation
    return {"transformation": _NO_CODE} if code and code.get("code") and not code.get("enabled") else {}


def _with_hidden(remote: RemoteEndpoint, current: Mapping[str, str], readable: Mapping[str, str]) -> dict[str, str]:
    """Return the shown headers, and the existing ones whose values the server hides."""
    hidden = {str(name).lower() for name in remote.sensitive}
    return {name: value for name, value in current.items() if name.lower() in hidden} | dict(readable)


def _hidden(remote: RemoteEndpoint, current: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that the server hides and that the endpoint here does not have."""
    have = {name.lower() for name in current}
    return {f"headers.{name}": _HIDDEN for name in remote.sensitive if str(name).lower() not in have}
