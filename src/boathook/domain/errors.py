"""Every error boathook raises on purpose, named by the stage of the flow it belongs to.

BoathookError
├── ConfigError                 the configuration or the set-up is wrong: says which key and what to write
├── DatabaseError               PostgreSQL
│   ├── DatabaseUnavailable     cannot be reached, or answers too late
│   │   └── DatabaseUrlRejected database.url, its user, password or database is wrong: waiting does not help
│   ├── ValueRejected           a value is one it can never take, whenever and however often it is offered
│   ├── UnsafeDatabase          its settings or version would make a 2xx a lie
│   └── RoutesChanged           routes changed between reading them and accepting an event
├── IngestError                 an event could not be taken in
│   ├── Overloaded              the queue in front of PostgreSQL is full
│   ├── SpoolUnavailable        neither PostgreSQL nor the spool can take it: the spool is full, or its disk fails
│   └── TooManyDeliveries       a batch has more items, or makes more deliveries, than an event can
├── DeliveryError               a handler's attempt
│   ├── LeaseLost               another worker holds this delivery now; nothing may be committed
│   ├── HandlerTimeout          the handler ran longer than its timeout
│   └── HandlerMisuse           the handler did what the contract forbids, such as ending boathook's transaction
├── SendError                   a message could not be published or sent
│   ├── DuplicateMessage        another message has this id or idempotency key already
│   ├── InvalidMessage          it breaks a rule, such as its event type's schema: says which field
│   └── SecretUnreadable        a stored secret cannot be decrypted with the keys at hand
├── AdminError                  what was asked for cannot be done as asked
│   ├── InvalidValue            a value breaks a rule: says which field and what to write
│   ├── AlreadyExists           a uid or name that must be unique is in use already
│   ├── LimitReached            there are as many as there may be
│   └── InvalidState            the thing is in no state for it: says in which
├── FetchFailed                 an address at a sender's could not be fetched, or may not be
├── InvalidTransition           a delivery cannot go from this state to that one
└── NotFound                    no such event, delivery, rejection, source, key, application, endpoint ...
"""


class BoathookError(Exception):
    """The base of all errors boathook raises on purpose."""

    @property
    def name(self) -> str:
        """The name of its class in the tree, such as ``NotFound``, for those who know this class alone."""
        return type(self).__name__


class ConfigError(BoathookError):
    """The configuration or the set-up is wrong; the message names the key and the fix."""


class DatabaseError(BoathookError):
    """PostgreSQL refused or failed."""


class DatabaseUnavailable(DatabaseError):
    """PostgreSQL cannot be reached, or does not answer in time."""


class DatabaseUrlRejected(DatabaseUnavailable):
    """PostgreSQL cannot be used under database.url: it is malformed, refused, or names a standby."""


class ValueRejected(DatabaseError):
    """PostgreSQL can never take a value that it was given; the same statement with others may well succeed."""


class UnsafeDatabase(DatabaseError):
    """The server's settings or version would make a 2xx a lie; the message says what to change."""


class RoutesChanged(DatabaseError):
    """The routes changed after they were read; read them again and retry."""


class IngestError(BoathookError):
    """An event could not be taken in."""


class Overloaded(IngestError):
    """The queue in front of the journal is full; the sender should come back later."""


class SpoolUnavailable(IngestError):
    """The spool cannot take an event, or be read: it is full, or its disk fails."""


class TooManyDeliveries(IngestError):
    """A batch has more items, or owes more deliveries, than one event can; nothing of it was stored."""


class DeliveryError(BoathookError):
    """An attempt at a delivery failed on our side of the contract."""


class LeaseLost(DeliveryError):
    """Another worker holds this delivery now, so nothing of this attempt may be committed."""


class HandlerTimeout(DeliveryError):
    """The handler ran longer than its timeout."""


class HandlerMisuse(DeliveryError):
    """The handler did what the contract forbids, such as ending boathook's transaction."""


class SendError(BoathookError):
    """A message could not be published or sent."""


class DuplicateMessage(SendError):
    """Another message of the application has this id or idempotency key, and is not the same."""


class InvalidMessage(SendError):
    """A message breaks a rule; the message names the field and the fix."""


class SecretUnreadable(SendError):
    """A stored secret cannot be decrypted with the keys at hand; the message says which key it needs."""


class AdminError(BoathookError):
    """What was asked for cannot be done as asked."""


class InvalidValue(AdminError):
    """A value breaks a rule; the message says what to write.

    Args:
        message: one sentence.
        where: the way to the value, such as ``"eventTypes", 0``.
        kind: one word for machines.
    """

    def __init__(self, message: str, *where: str | int, kind: str = "value_error") -> None:
        super().__init__(message)
        self.where = where
        self.kind = kind


class AlreadyExists(AdminError):
    """A uid or name that must be unique is in use already."""

    def __init__(self, message: str, kind: str = "conflict") -> None:
        super().__init__(message)
        self.kind = kind


class LimitReached(AdminError):
    """There are as many as there may be; the message says how there will be room again."""


class InvalidState(AdminError):
    """What was asked for cannot be done to this thing as it is; the message says why.

    Args:
        message: one sentence.
        kind: one word for machines.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class FetchFailed(BoathookError):
    """What lies at an address could not be had: it may not be dialled, did not answer, or not well.

    Args:
        message: one sentence, which holds no credential.
        status: the HTTP status of the answer that could not be used; None where none came.
        is_final: whether it would be the same another time, as where an address may not be dialled.
    """

    def __init__(self, message: str, *, status: int | None = None, is_final: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_final = is_final


class InvalidTransition(BoathookError):
    """A delivery cannot go from its state to the one asked for."""


class NotFound(BoathookError):
    """There is nothing with this id or name, or nothing that the asker may know of."""
