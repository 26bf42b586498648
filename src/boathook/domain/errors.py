"""All errors that boathook raises, grouped by processing stage.

BoathookError
├── ConfigError                 the configuration is wrong: names the key and the fix
├── DatabaseError               PostgreSQL
│   ├── DatabaseUnavailable     cannot be reached, or does not answer in time
│   │   ├── HomeUnavailable     another installation's: events that belong to it wait in the spool of this host
│   │   └── DatabaseUrlRejected database.url, its user, password or database is wrong: waiting does not help
│   ├── ValueRejected           PostgreSQL can never store this value; a retry does not help
│   │   ├── NotPassedOn         an event of another installation goes neither there nor into a spool
│   │   └── ApplicationDeleted  the application of a message that waited was deleted meanwhile
│   ├── UnsafeDatabase          its settings or version do not guarantee that committed data survives a crash
│   └── RoutesChanged           routes changed between reading them and accepting an event
├── IngestError                 an event could not be accepted
│   ├── Overloaded              the queue in front of PostgreSQL is full
│   ├── SpoolUnavailable        neither PostgreSQL nor the spool can store it: the spool is full, or its disk fails
│   ├── BufferUnavailable       the buffer of a package has not taken it in time
│   ├── AccessUnknown           the local copy of keys and applications cannot decide without PostgreSQL
│   └── TooManyDeliveries       a batch has more items or deliveries than one event can have
├── DeliveryError               a handler's attempt
│   ├── LeaseLost               another worker now holds this delivery; nothing may be committed
│   ├── HandlerTimeout          the handler ran longer than its timeout
│   └── HandlerMisuse           the handler broke the contract, for example by ending boathook's transaction
├── SendError                   a message could not be published or sent
│   ├── DuplicateMessage        another message already has this id or idempotency key
│   ├── InvalidMessage          it breaks a rule, such as its event type's schema: names the field
│   └── SecretUnreadable        a stored secret cannot be decrypted with the configured keys
├── AdminError                  a requested action cannot be done
│   ├── InvalidValue            a value breaks a rule: names the field and the fix
│   ├── AlreadyExists           a uid or name that must be unique is in use
│   ├── LimitReached            the maximum number is reached
│   ├── RateLimited             the caller has made too many requests: names when to try again
│   └── InvalidState            the object's state does not allow the action: names the state
├── TokenRejected               a JSON Web Token is not valid here
├── FetchFailed                 a URL at a sender could not be fetched, or is not allowed
├── InvalidTransition           a delivery cannot go from this state to that one
├── NotAllowed                  the caller of an operation lacks its permission, or may not reach its rows
├── ServedElsewhere             an application has moved to another installation: names it
└── NotFound                    no such event, delivery, rejection, source, key, application, endpoint ...
    └── ApplicationNotFound     a message is for no application, and for no handler of that name
"""

from collections.abc import Mapping


class BoathookError(Exception):
    """The base class of all errors that boathook raises."""

    @property
    def name(self) -> str:
        """The name of the error's class, such as ``NotFound``, for code that catches only the base class."""
        return type(self).__name__


class ConfigError(BoathookError):
    """The configuration is wrong; the message names the key and the fix."""


class DatabaseError(BoathookError):
    """PostgreSQL rejected a statement or failed."""


class DatabaseUnavailable(DatabaseError):
    """PostgreSQL cannot be reached, or does not answer in time."""


class HomeUnavailable(DatabaseUnavailable):
    """Another installation does not accept events that belong to it; they wait in the spool of this host."""

    reason = "home_unavailable"
    """Why a request is answered 503, for the log and the metrics."""


class DatabaseUrlRejected(DatabaseUnavailable):
    """database.url cannot be used: it is malformed, is rejected by the server, or points to a standby."""


class ValueRejected(DatabaseError):
    """PostgreSQL can never store a given value; the same statement with other values may succeed."""


class NotPassedOn(ValueRejected):
    """An event that belongs to another installation goes neither there nor into a spool; no other event is affected.

    Args:
        message: why.
        reason: why a request is answered 503, for the log and the metrics.
    """

    def __init__(self, message: str, reason: str = HomeUnavailable.reason) -> None:
        super().__init__(message)
        self.reason = reason


class ApplicationDeleted(ValueRejected):
    """The application of a message was deleted between accepting and storing the message."""


class UnsafeDatabase(DatabaseError):
    """The server's settings or version do not guarantee durable commits; the message says what to change."""


class RoutesChanged(DatabaseError):
    """The routes changed after they were read; read them again and retry."""


class IngestError(BoathookError):
    """An event could not be accepted."""


class Overloaded(IngestError):
    """The queue in front of PostgreSQL is full; the sender should retry later."""


class SpoolUnavailable(IngestError):
    """The spool cannot store an event or be read: it is full, or its disk fails."""


class BufferUnavailable(IngestError):
    """The buffer of a package does not take an event, or not in time; whether it has the event may be unknown."""


class AccessUnknown(IngestError):
    """PostgreSQL is needed to decide about a request to publish, and is unavailable; the publisher should retry."""


class TooManyDeliveries(IngestError):
    """A batch has more items or deliveries than one event can have; nothing was stored."""


class DeliveryError(BoathookError):
    """An attempt failed because of a lost lease, a timeout or a violated contract."""


class LeaseLost(DeliveryError):
    """Another worker now holds this delivery, so nothing of this attempt may be committed."""


class HandlerTimeout(DeliveryError):
    """The handler ran longer than its timeout."""


class HandlerMisuse(DeliveryError):
    """The handler broke the contract, for example by ending boathook's transaction."""


class SendError(BoathookError):
    """A message could not be published or sent."""


class DuplicateMessage(SendError):
    """Another message of the application has this id or idempotency key, but different content."""


class InvalidMessage(SendError):
    """A message breaks a rule; the text of the error names the field and the fix.

    Args:
        reason: one sentence.
        field: the message's field, such as ``payload``; empty if it is not about one field.
    """

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.reason = reason
        self.field = field


class SecretUnreadable(SendError):
    """A stored secret cannot be decrypted with the configured keys; the message names the key that it needs."""


class AdminError(BoathookError):
    """A requested action cannot be done."""


class InvalidValue(AdminError):
    """A value breaks a rule; the message names the fix.

    Args:
        message: one sentence.
        where: the path to the value, such as ``"eventTypes", 0``.
        kind: a machine-readable code.
        others: what else is wrong, for interfaces that show every error at its field.
    """

    def __init__(
        self,
        message: str,
        *path: str | int,
        kind: str = "value_error",
        others: "tuple[InvalidValue, ...]" = (),
    ) -> None:
        super().__init__(message)
        self.where = path
        self.kind = kind
        self.others = others


class AlreadyExists(AdminError):
    """A uid or name that must be unique is already in use."""

    def __init__(self, message: str, kind: str = "conflict") -> None:
        super().__init__(message)
        self.kind = kind


class LimitReached(AdminError):
    """The maximum number is reached; the message says how to free capacity."""


class RateLimited(AdminError):
    """The caller has made too many requests; the message says of what.

    Args:
        message: one sentence.
        retry_after_s: whole seconds after which another one may be allowed.
    """

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InvalidState(AdminError):
    """The object's state does not allow the requested action; the message names the reason.

    Args:
        message: one sentence.
        kind: a machine-readable code.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class TokenRejected(BoathookError):
    """A JSON Web Token is not valid here; the message continues "the token ..."."""


class FetchFailed(BoathookError):
    """A URL could not be fetched: it may not be requested, did not answer, or returned an unusable response.

    Args:
        message: one sentence, without credentials.
        status: the HTTP status of the unusable response; None if there was no response.
        is_final: whether a retry would fail the same way, for example because the address is forbidden.
        host: the URL's host; None if it is unknown.
        headers: those of the unusable response, by lower-case name.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        is_final: bool = False,
        host: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.is_final = is_final
        self.host = host
        self.headers = headers or {}


class InvalidTransition(BoathookError):
    """A delivery cannot go from its state to the requested one."""


class NotAllowed(BoathookError):
    """The caller may not run an operation: it lacks the permission, or the operation reaches beyond its tenant."""


class ServedElsewhere(BoathookError):
    """An application belongs to another installation, to which the request must be sent instead.

    Args:
        application: its public id, or the name in the request.
        home: the name of that installation.
        revision: the version of its routes that names its home: of two installations that disagree, the one with the
            higher revision is right. 0 if it is unknown.
    """

    def __init__(self, application: str, home: str, revision: int = 0) -> None:
        super().__init__(f"the application {application} belongs to the cell {home}; do this there")
        self.application = application
        self.home = home
        self.revision = revision


class NotFound(BoathookError):
    """Nothing has this id or name, or the caller may not see it."""


class ApplicationNotFound(NotFound):
    """A message is for an application that does not exist, and no handler names it, so it would reach no recipient."""
