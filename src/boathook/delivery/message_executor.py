"""The base of executors that hand over one message at a time: a destination other than HTTP has to add only `send`.

Signatures, timeouts, deleted contents, redaction and the limit of what is recorded are the same for all of them;
retries, order, rates, concurrency and health are the dispatcher's.
"""

import asyncio
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.db.endpoint_deliveries import EndpointConfig
from boathook.delivery.endpoint_executor import EndpointExecutor, ExecutorContext
from boathook.delivery.endpoint_queues import EndpointAttempt
from boathook.delivery.prepared_endpoint import CONTENT_DELETED, PreparedEndpoint
from boathook.delivery.response_redaction import redact, secret_forms
from boathook.delivery.signer import Signer, read_signers, sign_message, signing_texts
from boathook.domain import ids
from boathook.domain.policy import Failure, Result, RetryPolicy, Success

Fields = TypeVar("Fields")
"""The `DestinationFields` of the kind."""
TIMEOUT: Final = "TIMEOUT"
"""Failure code of an attempt that had no result in time."""


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message to hand over to a destination."""

    id: str
    """Its id, the same at each attempt: a destination that has it already should drop the message."""
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...]
    """Those of Standard Webhooks, if messages of the kind are signed, and the tracer's."""
    attempt: int
    """1 for the first."""


class Receipt(msgspec.Struct, frozen=True):
    """What a destination did with a message."""

    result: Success | Failure
    """A failure is temporary unless it ``is_final``; a code ``GONE`` disables the endpoint."""
    response: bytes = b""
    """What it answered; the attempt has the beginning of it, without the endpoint's secrets."""
    status: int = 0
    """Its status, if it has such numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEndpoint(PreparedEndpoint):
    """An endpoint of a kind with fields of its own."""

    fields: Any
    signers: tuple[Signer, ...] = ()


class MessageExecutor(EndpointExecutor, Generic[Fields]):
    """Makes attempts at the endpoints of one kind by its `send`."""

    def __init__(self, context: ExecutorContext) -> None:
        self.settings: Settings = context.settings
        self._tracer = context.tracer
        self._table = None if context.kind.fields is None else resolve(context.kind.fields)
        self._is_signed = context.kind.is_signed

    @abstractmethod
    async def send(self, fields: Fields, message: OutgoingMessage) -> Receipt:
        """Hand one message over to the destination with these fields. An OSError is a temporary failure.

        It is cancelled after the endpoint's timeout, and then the attempt fails with the code ``TIMEOUT``.
        """
        ...

    def prepare(self, config: EndpointConfig, policy: RetryPolicy, timeout_s: float) -> MessageEndpoint:
        """See `EndpointExecutor.prepare`."""
        table = self._table
        signers = read_signers(config.secrets) if self._is_signed else ()
        texts = [*signing_texts(signers), *_texts_in(list(config.destination_secrets.values()))]
        return MessageEndpoint(
            revision=config.revision,
            url=config.url,
            policy=policy,
            timeout_s=timeout_s,
            executor=self,
            secrets=secret_forms(texts),
            good_until=config.good_until if self._is_signed else None,
            fields=None if table is None else table.read({**config.destination_fields, **config.destination_secrets}),
            signers=signers,
        )

    async def execute(self, attempt: EndpointAttempt) -> Result:
        """See `Executor.execute`."""
        endpoint, delivery = attempt.endpoint, attempt.delivery
        assert isinstance(endpoint, MessageEndpoint)
        if delivery.body is None:
            attempt.took_s = 0.0
            return CONTENT_DELETED
        began = time.monotonic()
        try:
            async with asyncio.timeout(endpoint.timeout_s):
                receipt = await self.send(endpoint.fields, self._message(attempt, endpoint, delivery.body))
        except TimeoutError:
            receipt = Receipt(Failure(code=TIMEOUT, error=f"no result within {endpoint.timeout_s:g} seconds"))
        except OSError as error:
            receipt = Receipt(Failure(code=type(error).__name__, error=str(error)))
        attempt.took_s, attempt.status, attempt.ended_ns = time.monotonic() - began, receipt.status, time.time_ns()
        attempt.response = redact(receipt.response[: self.settings.outbound.max_response], endpoint.secrets)
        result = receipt.result
        if isinstance(result, Failure) and endpoint.secrets:
            redacted = redact(result.error.encode("utf-8", "replace"), endpoint.secrets)
            return msgspec.structs.replace(result, error=redacted.decode("utf-8", "replace"))
        return result

    def _message(self, attempt: EndpointAttempt, endpoint: MessageEndpoint, body: bytes) -> OutgoingMessage:
        delivery = attempt.delivery
        message_id, headers = ids.show(ids.MESSAGE, delivery.event_id), []
        if endpoint.signers:
            prefixes = self.settings.outbound.header_prefixes
            headers = sign_message(prefixes, endpoint.signers, message_id, int(time.time()), body)
        trace = None if self._tracer is None else self._tracer.header(delivery)
        return OutgoingMessage(
            message_id,
            body,
            delivery.content_type or "application/json",
            tuple(headers if trace is None else [*headers, trace]),
            delivery.attempt,
        )


def _texts_in(value: Any) -> list[str]:
    """Return all texts in a JSON value."""
    texts: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, dict | list):
            waiting += item.values() if isinstance(item, dict) else item
    return texts
