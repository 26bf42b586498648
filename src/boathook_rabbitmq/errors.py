"""The errors of brokers.

BufferUnavailable
└── BrokerUnavailable       no broker has completed an operation in time
    ├── BrokerRefused       a broker rejects the message, such as when its queue is full
    └── BrokerMisconfigured a broker rejects the login or a queue: waiting does not help
"""

from boathook.domain.errors import BufferUnavailable


class BrokerUnavailable(BufferUnavailable):
    """No RabbitMQ broker completed an operation in time; whether it has a message is then unknown."""


class BrokerRefused(BrokerUnavailable):
    """A broker rejects a message, for example because its queue is full; others may still be accepted."""


class BrokerMisconfigured(BrokerUnavailable):
    """A broker rejects the login, the vhost or a queue's arguments; the message says what to change."""
