"""The settings of channels: [notifications.channels.NAME], by their kind."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from boathook.config.channels import ChannelTable
from boathook.config.types import Secret


class TelegramChannel(ChannelTable):
    """A Telegram chat to which a bot posts."""

    kind: Literal["telegram"]
    token: Secret = Field(repr=False)
    chat: str
    """The chat's number, or ``@name`` of a public channel."""
    thread: int | None = None
    api: str = "https://api.telegram.org"
    """Base URL of the Bot API, for self-hosted servers."""

    @property
    def destination(self) -> str:
        """See `ChannelTable.destination`."""
        return f"chat {self.chat}"


class SlackChannel(ChannelTable):
    """A channel of Slack, or of a service that accepts Slack's incoming webhooks."""

    kind: Literal["slack"]
    url: Secret = Field(repr=False)
    """The URL of the incoming webhook, which is a secret itself."""


class EmailChannel(ChannelTable):
    """Mailboxes, reached through an SMTP server."""

    kind: Literal["email"]
    host: str
    port: Annotated[int, Field(ge=1, le=65_535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str = ""
    password: Secret | None = Field(default=None, repr=False)
    sender: str
    to: tuple[str, ...] = Field(min_length=1)
    ca_file: str = ""
    """A PEM file of certificates to trust instead of the system's."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for address in (self.sender, *self.to):
            if "@" not in address or not address.isprintable() or any(char in address for char in "<>, "):
                raise ValueError(f'invalid address {address!r}; use a form such as "ops@example.com"')
        if self.username and self.security == "none":
            raise ValueError("a password is not sent unencrypted: choose starttls or tls, or remove username")
        if bool(self.username) != (self.password is not None):
            raise ValueError("username and password belong together; set both or neither")
        return self

    @property
    def destination(self) -> str:
        """See `ChannelTable.destination`."""
        return ", ".join(self.to)


class WebhookChannel(ChannelTable):
    """A URL that receives alerts as signed JSON documents."""

    kind: Literal["webhook"]
    url: Secret = Field(repr=False)
    secret: Secret = Field(repr=False)
    """``whsec_`` and base64 of 24 to 64 bytes; messages are signed by Standard Webhooks."""
