"""Stores messages, deliveries and attempts directly in the database, as the publisher and the sender would."""

import json
import random
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from boathook.db.database import Database
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.ids import message_key
from boathook.service.unit_of_work import new_id


def id_at(moment: datetime, entropy: int | None = None) -> UUID:
    """Return an id with this time."""
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return ids.make(ms, secrets.randbits(74) if entropy is None else entropy)


def ago(**span: float) -> datetime:
    """Return the time this long ago."""
    return datetime.now(UTC) - timedelta(**span)


class MessageFactory:
    """Creates one application with endpoints, messages and attempts."""

    def __init__(self, db: Database, organization: str = "default") -> None:
        self.db = db
        self.organization = organization
        self.application_id = new_id()

    @property
    def name(self) -> str:
        """The application's public id."""
        return ids.show(ids.APPLICATION, self.application_id)

    async def open(self, uid: str | None = None) -> "MessageFactory":
        """Store the application."""
        await self.db.execute(
            "insert into boathook.application (id, organization, uid, name) values ($1, $2, $3, 'Acme')",
            self.application_id,
            self.organization,
            uid,
        )
        return self

    async def endpoint(self, **columns: Any) -> UUID:
        """Store an endpoint."""
        identifier = new_id()
        row = {"id": identifier, "application_id": self.application_id, "url": "https://example.com/hook"} | columns
        names, marks = ", ".join(row), ", ".join(f"${place}" for place in range(1, len(row) + 1))
        await self.db.execute(f"insert into boathook.endpoint ({names}) values ({marks})", *row.values())
        return identifier

    async def message(
        self,
        moment: datetime,
        *,
        type: str = "invoice.paid",
        payload: Any = None,
        recipients: tuple[UUID, ...] = (),
        due: datetime | None = None,
        order_key: str | None = None,
        **columns: Any,
    ) -> UUID:
        """Store a message with a delivery to each of *recipients*; an endpoint named twice gets a replay as well."""
        identifier = id_at(moment)
        body = json.dumps({"n": 1} if payload is None else payload).encode()
        row = {
            "id": identifier, "application": self.name, "type": type, "dedup_key": ids.show(ids.EVENT, identifier),
            "grade": "none", "origin": "published", "headers": "{}", "content_type": "application/json", "body": body,
            "fanout": len(set(recipients)), "accepted_at": moment,
        } | columns  # fmt: skip
        if "expunged_at" in columns:
            row["body"] = b""
        names, marks = ", ".join(row), ", ".join(f"${place}" for place in range(1, len(row) + 1))
        await self.db.execute(
            f"insert into boathook.event ({names}, body_sha256) values ({marks}, sha256(${len(row) + 1}))",
            *row.values(),
            body,
        )
        await self.db.execute(
            """insert into boathook.dedup (key, event_id, body_sha256, expires_at)
               values ($1, $2, sha256($3), now() + interval '30 days')""",
            message_key(self.name, row["dedup_key"]), identifier, body,
        )  # fmt: skip
        for ordinal, endpoint_id in enumerate(recipients):
            await self.db.execute(
                """insert into boathook.delivery (event_id, ordinal, recipient, enqueued_at, due_at, order_key, is_replay)
                   values ($1, $2, $3, $4, $5, $6, $7)""",
                identifier, ordinal, recipient(endpoint_id), moment, due or moment, order_key, endpoint_id in recipients[:ordinal],
            )  # fmt: skip
        return identifier

    async def attempt(
        self,
        message_id: UUID,
        ordinal: int = 0,
        *,
        moment: datetime,
        status: int = 500,
        outcome: str = "retry",
        response: bytes = b"no",
        error: str | None = None,
        is_manual: bool = False,
        code: str = "HTTP_500",
    ) -> UUID:
        """Store an attempt with this outcome: 'succeeded' completes the delivery, 'dead' makes it a dead letter."""
        identifier = id_at(moment)
        key = (message_id, ordinal)
        await self.db.execute(
            """insert into boathook.attempt (event_id, ordinal, number, outcome, code, error, worker, started_at, ended_at,
                   id, recipient, url, status, duration_ms, request_headers, response, is_manual)
               select event_id, ordinal, attempts + 1, $3, $4, $5, 'test', $6, $6, $7, recipient, 'https://example.com/hook',
                   $8, 12, '[]', $9, $10 from boathook.delivery where event_id = $1 and ordinal = $2""",
            *key, outcome, None if outcome == "succeeded" else code, error, moment, identifier, status, response, is_manual,
        )  # fmt: skip
        await self.db.execute(
            """update boathook.delivery set attempts = attempts + 1, code = $3, error = $4 where event_id = $1 and ordinal = $2""",
            *key, code, error,
        )  # fmt: skip
        if outcome == "dead":
            await self.mark_dead(message_id, ordinal, code=code, moment=moment)
        elif outcome == "succeeded":
            await self._settle(key)
        return identifier

    async def mark_dead(
        self, message_id: UUID, ordinal: int = 0, *, code: str = "HTTP_500", moment: datetime | None = None
    ) -> None:
        """Mark a delivery as a dead letter."""
        await self.db.execute(
            "update boathook.delivery set state = 'dead', dead_at = $3, code = $4 where event_id = $1 and ordinal = $2",
            message_id, ordinal, moment or datetime.now(UTC), code,
        )  # fmt: skip

    async def _settle(self, key: tuple[UUID, int]) -> None:
        await self.db.execute(
            """with gone as (delete from boathook.delivery where event_id = $1 and ordinal = $2 returning *)
               insert into boathook.delivery_archive (event_id, ordinal, recipient, state, order_key, is_replay, attempts, replays,
                   note, ended_at, item_path, item_type, is_manual)
               select event_id, ordinal, recipient, 'succeeded', order_key, is_replay, attempts, replays, null, now(), null,
                   null, is_manual from gone""",
            *key,
        )

    async def failed(self, moment: datetime, endpoint_id: UUID, dice: random.Random, attempts: int = 3) -> UUID:
        """Store a message whose retries at an endpoint are exhausted."""
        identifier = await self.message(moment, recipients=(endpoint_id,))
        at = moment
        for number in range(attempts):
            at += timedelta(seconds=5 * 4**number * dice.uniform(0.8, 1.2))
            await self.attempt(identifier, moment=at, outcome="dead" if number == attempts - 1 else "retry")
        return identifier

    async def pending_deliveries(self, endpoint_id: UUID) -> list[Any]:
        """Return the pending deliveries to an endpoint, oldest first."""
        return await self.db.fetch(
            "select * from boathook.delivery where recipient = $1 order by event_id, ordinal", recipient(endpoint_id)
        )


def recipient(endpoint_id: UUID) -> str:
    """Return the recipient of deliveries to an endpoint."""
    return recipient_of(ids.show(ids.ENDPOINT, endpoint_id))
