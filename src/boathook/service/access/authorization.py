"""Authorization: one table of permissions for the API, the console, the portal and mounts.

Each route names its permission with `requires`, or where it is registered; a route without one is an error at start
(`check_routes`). The command line needs no permission, because its user has the database password.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from boathook.db.api_keys import ApiKey
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION, MountRole, Role

Route = TypeVar("Route", bound=Callable[..., Any])


class Capability(StrEnum):
    """A permission of a token of one application; each such token has ViewBase."""

    VIEW_BASE = "ViewBase"
    VIEW_ENDPOINT_SECRET = "ViewEndpointSecret"  # noqa: S105 - a name in the API, not a secret
    MANAGE_ENDPOINT_SECRET = "ManageEndpointSecret"  # noqa: S105 - the same
    MANAGE_TRANSFORMATIONS = "ManageTransformations"
    CREATE_ATTEMPTS = "CreateAttempts"
    MANAGE_ENDPOINT = "ManageEndpoint"


class Permission(StrEnum):
    """A permission of a caller; its value is the name that templates use."""

    PUBLIC = "public"
    """Sign in, enter the portal, read health, the API's description and static files."""
    ACCOUNT = "account"
    """Sign out, and change one's own password."""
    ALERT_MANAGE = "alert.manage"
    ALERT_VIEW = "alert.view"
    APP_CALL = "app.call"
    """Call an app's mounted path with any method."""
    APP_READ = "app.read"
    """Call an app's mounted path with GET, HEAD or OPTIONS, and open its WebSockets."""
    APPLICATION_LIST = "application.list"
    APPLICATION_MANAGE = "application.manage"
    APPLICATION_VIEW = "application.view"
    AUDIT_VIEW = "audit.view"
    CONFLICT_ACCEPT = "conflict.accept"
    """Accept a conflict as a new event."""
    CONFLICT_VIEW = "conflict.view"
    OVERVIEW_VIEW = "overview.view"
    DEAD_LETTER_DECIDE = "dead_letter.decide"
    """Replay or ignore dead letters."""
    DEAD_LETTER_PURGE = "dead_letter.purge"
    DEAD_LETTER_VIEW = "dead_letter.view"
    DESTINATION_CHOOSE = "destination.choose"
    """Give endpoints any kind of destination in `outbound.destinations`, and not only those for tenants."""
    ENDPOINT_HEADERS_VIEW = "endpoint.headers.view"
    """Read the values of an endpoint's custom headers."""
    ENDPOINT_MANAGE = "endpoint.manage"
    ENDPOINT_SECRET_ROTATE = "endpoint.secret.rotate"  # noqa: S105 - a permission's name
    ENDPOINT_SECRET_VIEW = "endpoint.secret.view"  # noqa: S105 - the same
    ENDPOINT_TEST = "endpoint.test"
    """Send the example of an event type to an endpoint."""
    ENDPOINT_VIEW = "endpoint.view"
    ENVIRONMENT_EXPORT = "environment.export"
    ENVIRONMENT_IMPORT = "environment.import"
    EVENT_EXPORT = "event.export"
    """Download the events that match a search, with their payloads."""
    EVENT_LISTEN = "event.listen"
    EVENT_REPLAY = "event.replay"
    EVENT_ROUTE = "event.route"
    """Add deliveries of stored events to handlers, which belong to the deployment."""
    """Replay events, or route them to the current handlers."""
    EVENT_REVEAL = "event.reveal"
    """Read the values of an event's headers that may hold secrets."""
    EVENT_TYPE_MANAGE = "event_type.manage"
    EVENT_TYPE_VIEW = "event_type.view"
    EVENT_VIEW = "event.view"
    HANDLER_VIEW = "handler.view"
    JOB_STOP = "job.stop"
    JOB_VIEW = "job.view"
    KEY_MANAGE = "key.manage"
    KEY_VIEW = "key.view"
    MESSAGE_EXPUNGE = "message.expunge"
    MESSAGE_PUBLISH = "message.publish"
    """Publish a message, or send a custom payload to one endpoint."""
    MESSAGE_RESEND = "message.resend"
    """Send messages to an endpoint again: a single one, or all of a time range."""
    MESSAGE_VIEW = "message.view"
    """Read messages and attempts."""
    OPERATIONAL_WEBHOOK_MANAGE = "operational_webhook.manage"
    """Read and change endpoints of operational webhooks, with their secrets and headers."""
    OPERATOR_ACCESS_MANAGE = "operator.access.manage"
    """Give access: create and enable operators, change their roles, set their passwords and create their tokens."""
    OPERATOR_MANAGE = "operator.manage"
    """List, disable and delete operators, and revoke their tokens."""
    PORTAL_GRANT = "portal.grant"
    """Create and revoke access to an application's portal."""
    REJECTION_REVERIFY = "rejection.reverify"
    REJECTION_VIEW = "rejection.view"
    SETTINGS_VIEW = "settings.view"
    SOURCE_MANAGE = "source.manage"
    """Add, change and remove sources that are stored in PostgreSQL, with the secrets of new ones."""
    SOURCE_SECRET_MANAGE = "source.secret.manage"  # noqa: S105 - the same
    """Add and end secrets of sources, and read handshake secrets."""
    SOURCE_SECRET_VIEW = "source.secret.view"  # noqa: S105 - the same
    """List the secrets of sources and where each is stored, without their values."""
    SOURCE_TEST = "source.test"
    SOURCE_VIEW = "source.view"
    TASK_VIEW = "task.view"
    TOKEN_END = "token.end"  # noqa: S105 - the same
    """Revoke the token in use."""
    USAGE_COUNT = "usage.count"
    VERIFY_RUN = "verify.run"
    VERIFY_VIEW = "verify.view"


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """The callers that have a permission, by kind; None denies all callers of a kind."""

    role: Role | None = None
    """The minimum role of an operator."""
    capability: Capability | None = None
    """The capability of a token of one application."""
    mount_role: MountRole | None = None
    """The minimum role of a caller with access to one mounted path."""
    is_for_organization: bool = True
    """Whether a token of the whole organization is sufficient."""
    is_public: bool = False
    """Whether the caller may be unauthenticated."""
    is_for_operator_tokens: bool = True
    """Whether an operator's token is sufficient; False requires the operator to be signed in."""


def _operators(role: Role, *, with_token: bool = True) -> AccessRule:
    return AccessRule(role=role, is_for_organization=False, is_for_operator_tokens=with_token)


_VIEWER: Final = _operators(Role.VIEWER)
_OPERATOR: Final = _operators(Role.OPERATOR)
_ADMIN: Final = _operators(Role.ADMIN)
_ORGANIZATION: Final = AccessRule()

ACCESS_RULES: Final[Mapping[Permission, AccessRule]] = MappingProxyType(
    {
        Permission.PUBLIC: AccessRule(is_public=True),
        Permission.ACCOUNT: _operators(Role.VIEWER, with_token=False),
        Permission.ALERT_MANAGE: _OPERATOR,
        Permission.ALERT_VIEW: _VIEWER,
        Permission.APP_CALL: AccessRule(mount_role=MountRole.OPERATOR),
        Permission.APP_READ: AccessRule(mount_role=MountRole.READER),
        Permission.APPLICATION_LIST: AccessRule(role=Role.VIEWER),
        Permission.APPLICATION_MANAGE: AccessRule(role=Role.OPERATOR),
        Permission.APPLICATION_VIEW: AccessRule(role=Role.VIEWER, capability=Capability.VIEW_BASE),
        Permission.AUDIT_VIEW: _VIEWER,
        Permission.CONFLICT_ACCEPT: AccessRule(role=Role.OPERATOR),
        Permission.CONFLICT_VIEW: AccessRule(role=Role.VIEWER),
        Permission.OVERVIEW_VIEW: _VIEWER,
        Permission.DEAD_LETTER_DECIDE: AccessRule(role=Role.OPERATOR),
        Permission.DEAD_LETTER_PURGE: _ADMIN,
        Permission.DEAD_LETTER_VIEW: AccessRule(role=Role.VIEWER),
        Permission.DESTINATION_CHOOSE: _OPERATOR,
        Permission.ENDPOINT_HEADERS_VIEW: AccessRule(role=Role.OPERATOR, capability=Capability.VIEW_ENDPOINT_SECRET),
        Permission.ENDPOINT_MANAGE: AccessRule(role=Role.OPERATOR, capability=Capability.MANAGE_ENDPOINT),
        Permission.ENDPOINT_SECRET_ROTATE: AccessRule(role=Role.OPERATOR, capability=Capability.MANAGE_ENDPOINT_SECRET),
        Permission.ENDPOINT_SECRET_VIEW: AccessRule(role=Role.OPERATOR, capability=Capability.VIEW_ENDPOINT_SECRET),
        Permission.ENDPOINT_TEST: AccessRule(role=Role.OPERATOR, capability=Capability.CREATE_ATTEMPTS),
        Permission.ENDPOINT_VIEW: AccessRule(role=Role.VIEWER, capability=Capability.VIEW_BASE),
        Permission.ENVIRONMENT_EXPORT: _ORGANIZATION,
        Permission.ENVIRONMENT_IMPORT: _ORGANIZATION,
        Permission.EVENT_EXPORT: _OPERATOR,
        Permission.EVENT_LISTEN: _ORGANIZATION,
        Permission.EVENT_REPLAY: AccessRule(role=Role.OPERATOR),
        Permission.EVENT_ROUTE: _OPERATOR,
        Permission.EVENT_REVEAL: _OPERATOR,
        Permission.EVENT_TYPE_MANAGE: AccessRule(role=Role.OPERATOR),
        Permission.EVENT_TYPE_VIEW: AccessRule(role=Role.VIEWER, capability=Capability.VIEW_BASE),
        Permission.EVENT_VIEW: AccessRule(role=Role.VIEWER),
        Permission.HANDLER_VIEW: _VIEWER,
        Permission.JOB_STOP: AccessRule(role=Role.OPERATOR),
        Permission.JOB_VIEW: AccessRule(role=Role.VIEWER),
        Permission.KEY_MANAGE: _ADMIN,
        Permission.KEY_VIEW: _VIEWER,
        Permission.MESSAGE_EXPUNGE: AccessRule(role=Role.ADMIN),
        Permission.MESSAGE_PUBLISH: AccessRule(role=Role.OPERATOR),
        Permission.MESSAGE_RESEND: AccessRule(role=Role.OPERATOR, capability=Capability.CREATE_ATTEMPTS),
        Permission.MESSAGE_VIEW: AccessRule(role=Role.VIEWER, capability=Capability.VIEW_BASE),
        Permission.OPERATIONAL_WEBHOOK_MANAGE: _ORGANIZATION,
        # A token with it could give an access that outlives it.
        Permission.OPERATOR_ACCESS_MANAGE: _operators(Role.ADMIN, with_token=False),
        Permission.OPERATOR_MANAGE: _ADMIN,
        Permission.PORTAL_GRANT: AccessRule(role=Role.OPERATOR),
        Permission.REJECTION_REVERIFY: AccessRule(role=Role.OPERATOR),
        Permission.REJECTION_VIEW: AccessRule(role=Role.VIEWER),
        Permission.SETTINGS_VIEW: _OPERATOR,
        Permission.SOURCE_MANAGE: AccessRule(role=Role.ADMIN),
        Permission.SOURCE_SECRET_MANAGE: _ADMIN,
        Permission.SOURCE_SECRET_VIEW: _VIEWER,
        Permission.SOURCE_TEST: _OPERATOR,
        Permission.SOURCE_VIEW: AccessRule(role=Role.VIEWER),
        Permission.TASK_VIEW: _ORGANIZATION,
        Permission.TOKEN_END: AccessRule(capability=Capability.VIEW_BASE, is_for_organization=False),
        Permission.USAGE_COUNT: _ORGANIZATION,
        Permission.VERIFY_RUN: _OPERATOR,
        Permission.VERIFY_VIEW: _VIEWER,
    }
)
"""The access rule of each permission."""


class OperatorCaller(msgspec.Struct, frozen=True):
    """An operator of the deployment, by role."""

    role: Role
    id: UUID | None = None
    tenant: str | None = None
    application_id: UUID | None = None

    def may(self, permission: Permission) -> bool:
        """Return whether the role includes a permission."""
        return role_may(self.role, permission)

    def frozen(self) -> Mapping[str, str]:
        """Return the operator, whose role a job compares at each step."""
        return {} if self.id is None else {"operator": str(self.id)}


class Principal(msgspec.Struct, frozen=True):
    """The holder of a token, and its permissions."""

    key_id: UUID
    organization: str
    application_id: UUID | None = None
    """The only application it may access; None allows all of the organization's."""
    feature_flags: frozenset[str] = frozenset()
    capabilities: frozenset[str] | None = None
    """Its capabilities; None allows everything."""
    is_portal: bool = False
    mount: str | None = None
    """The only mounted path of an app that it may call; it may do nothing else."""
    mount_role: MountRole | None = None
    """Its role at that path."""

    @property
    def actor(self) -> str:
        """The actor for the audit."""
        return f"api:{ids.show(ids.API_KEY, self.key_id)}"

    @property
    def tenant(self) -> str:
        """The only organization whose rows it may touch."""
        return self.organization

    def frozen(self) -> Mapping[str, str]:
        """Return the key, which must still be valid at each step of a job."""
        return {"key": str(self.key_id)}

    @property
    def is_for_organization(self) -> bool:
        """Whether the token is for the whole organization, without restrictions."""
        is_limited = self.application_id is not None or self.capabilities is not None or self.mount is not None
        return not is_limited and not self.is_portal

    def may(self, permission: Permission) -> bool:
        """Return whether the token grants this permission."""
        rule = ACCESS_RULES[permission]
        if rule.is_public:
            return True
        if self.is_for_organization:
            return rule.is_for_organization
        if self.mount is not None:
            return mount_role_may(self.mount_role, permission)
        if self.application_id is None or rule.capability is None:
            return False
        is_granted = self.capabilities is None or rule.capability in self.capabilities
        return is_granted or rule.capability is Capability.VIEW_BASE


class OperatorTokenCaller(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of an operator's token: acts on the whole deployment, with the permissions of a role."""

    token_id: UUID
    operator_id: UUID
    operator: str
    """The operator's name."""
    role: Role
    """The lower of the token's role and the one that the operator has now."""
    organization: str = DEFAULT_ORGANIZATION
    """The organization of routes that are about one, as in the console."""

    @property
    def tenant(self) -> None:
        """No organization: it may touch the rows of all."""
        return

    @property
    def application_id(self) -> None:
        """No application: it may touch the rows of all."""
        return

    @property
    def actor(self) -> str:
        """The actor for the audit."""
        return f"operator:{self.operator}/{ids.show(ids.OPERATOR_TOKEN, self.token_id)}"

    def may(self, permission: Permission) -> bool:
        """Return whether the role includes a permission that tokens may have."""
        return ACCESS_RULES[permission].is_for_operator_tokens and role_may(self.role, permission)

    def frozen(self) -> Mapping[str, str]:
        """Return the token, which must still be valid at each step of a job, with its operator's role."""
        return {"operator": str(self.operator_id), "token": str(self.token_id)}


ApiCaller = Principal | OperatorTokenCaller
"""The holder of a bearer token of the API."""


def principal_of(key: ApiKey) -> Principal:
    """Return the holder of a valid key."""
    return Principal(
        key_id=key.id,
        organization=key.organization,
        application_id=key.application_id,
        feature_flags=frozenset(key.feature_flags or ()),
        capabilities=None if key.capabilities is None else frozenset(key.capabilities),
        is_portal=key.is_portal,
        mount=key.mount,
        mount_role=None if key.mount_role is None else MountRole(key.mount_role),
    )


def role_may(role: Role, permission: Permission) -> bool:
    """Return whether an operator with this role has a permission."""
    rule = ACCESS_RULES[permission]
    return rule.is_public or (rule.role is not None and role.covers(rule.role))


def mount_role_may(role: MountRole | None, permission: Permission) -> bool:
    """Return whether a caller with this role at a mounted path has a permission there; None: no role."""
    needed = ACCESS_RULES[permission].mount_role
    return role is not None and needed is not None and role.covers(needed)


def requires(permission: Permission) -> Callable[[Route], Route]:
    """Set the permission that a route requires."""

    def name(route: Route) -> Route:
        cast("Any", route).permission = permission
        return route

    return name


def permission_of(route: Callable[..., Any]) -> Permission:
    """Return the permission that a route requires. Raises TypeError if it names none."""
    permission = getattr(route, "permission", None)
    if not isinstance(permission, Permission):
        name = getattr(route, "__qualname__", repr(route))
        raise TypeError(f"the route {name} names no permission; decorate it with requires(Permission.…)")
    return permission


def check_routes(routes: Iterable[Any]) -> None:
    """Check that every route names a permission. Raises TypeError."""
    for route in routes:
        permission_of(route.endpoint)
