"""The settings of one source: boathook's own keys and those of the provider's recipe.

Each key is one row: its type has the limits, its docstring is its documentation, and `Shown` makes it a field of the
console's form and an option of the command line.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from boathook.config.types import (
    BaseUrl,
    Count,
    Days,
    Encodings,
    HeaderName,
    MediaType,
    Networks,
    NotNegative,
    Positive,
    RetrySchedule,
    Secret,
    SourcePath,
    Status,
    Table,
)


class Shown(NamedTuple):
    """What a form and the command line show of a key that every source has."""

    label: str
    hint: str = ""
    """One sentence."""


def _schema(value: Any) -> Any:
    if value is None or isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise ValueError('must be a table that is a JSON Schema, or the path of a file with one, "payment.json"')


class SourceSettings(Table):
    """One source: a provider's recipe, secrets, paths and policy; missing keys default to the provider and `[limits]`.

    Other keys are kept and passed to the provider's recipe, which rejects unknown ones.
    """

    model_config = ConfigDict(extra="allow", frozen=True, serialize_by_alias=True)

    provider: str
    """The provider's name; by default the source's name. `boathook sources providers` lists all."""
    secrets: tuple[Secret, ...] = Field(default=(), repr=False)
    """Signing secrets, as a list of `"env:NAME"` or `"file:PATH"`; each of them is valid, so that a secret can be
    rotated. Each has at least 6 characters. `secret` takes a single one."""
    paths: Annotated[
        tuple[SourcePath, ...], Shown("Other paths", "Other paths than /in/NAME, such as /hooks/shop.")
    ] = ()
    """Additional paths besides `/in/NAME`, such as `["/webhooks/stripe"]`."""
    unsigned: Annotated[bool, Shown("Accept requests without verification")] = False
    """Accept requests without verification. Only for senders that cannot sign."""
    addresses: Annotated[Networks, Shown("Networks", "Networks that may send requests, such as 203.0.113.0/24.")] = ()
    """Networks that requests may come from, such as `["203.0.113.0/24"]`, in addition to the verification."""
    tolerance_s: Annotated[Positive | None, Shown("Clock tolerance", "Maximum age of a signature in seconds.")] = None
    """Seconds by which a signed timestamp may differ from the clock, in both directions; by default the provider's."""
    max_body: Annotated[Count | None, Shown("Largest body", "Maximum bytes of a request's body.")] = None
    """Maximum request body in bytes; by default `limits.max_body`, or more if the sender documents it."""
    rate: Annotated[NotNegative | None, Shown("Rate", "Maximum requests per second.")] = None
    """Maximum requests per second, over all gateways; more are answered 429, or 503 if the sender gives up after a 429.
    Absent or 0: no limit."""
    burst: Annotated[Count | None, Shown("Burst", "Maximum requests at once; by default those of a second.")] = None
    """Requests that may come at once before `rate` applies."""
    dedup_fields: Annotated[tuple[str, ...], Shown("Dedup fields", "JSON paths that identify an event together.")] = ()
    """JSON paths whose values together identify the event, for senders without event ids."""
    dedup_headers: Annotated[
        tuple[HeaderName, ...], Shown("Dedup headers", "Headers that tell equal bodies apart.")
    ] = ()
    """Headers that tell requests with equal bodies apart, for senders without event ids, such as
    `["x-delivery-id", "x-timestamp"]`. Those that a request has are part of its key, and are stored with the event."""
    dedup_object: Annotated[str | None, Shown("Dedup object", "JSON path of the object that an event is about.")] = None
    """JSON path of the object that an event is about, such as `"payload.id"`. A repetition is then a duplicate only
    while it is the newest event of that object; see
    [duplicates](../how-to/duplicates-and-order.md#states-that-come-back). The path may go on inside a text that holds
    JSON or a Ruby hash."""
    keep_request_id: Annotated[bool, Shown("Store the request's id with its event")] = False
    """Store the id under which the gateway logs and answers a request with its event, as `event.request_id`."""
    request_id_header: Annotated[
        HeaderName | None, Shown("Request id header", "Header with the sender's id of a request, such as x-request-id.")
    ] = None
    """Header with the sender's or a proxy's id of a request, such as `"x-request-id"`. Then boathook logs, answers and
    stores that id instead of one of its own, if it has at most 100 letters, digits and `._:/+=@-`. Anyone can send any
    id in it, also one that was used before."""
    volatile: Annotated[tuple[str, ...], Shown("Volatile fields", "JSON paths that may differ between attempts.")] = ()
    """JSON paths whose values may differ between two attempts for one event, such as `["attempt", "sent_at"]`, besides
    those that boathook knows of the provider. `*` stands for each element of an array. With `dedup_fields`, the default
    is the common names of such fields at the top of the body, such as `createdAt`, `timestamp` and `attempts`."""
    repeated_body: Annotated[
        Literal["accept", "refuse"],
        Shown("Repeated bodies", "Whether to accept or refuse a signed body under another id."),
    ] = "accept"
    """What follows if a signed body comes again under another id: `"accept"`, the default, makes it a new event that
    names the first; `"refuse"` keeps it as a conflict; see
    [duplicates](../how-to/duplicates-and-order.md#one-body-under-two-ids)."""
    dedup_days: Annotated[Days | None, Shown("Dedup memory", "Days for which repeated events are recognized.")] = None
    """Days that a dedup key is remembered; by default `retention.dedup_days`, or a day more than the provider
    retries."""
    dedup_window_s: Annotated[
        Positive | None, Shown("Dedup window", "Seconds for which they are, instead of days.")
    ] = None
    """Seconds after its acceptance for which an event's key is remembered, instead of `dedup_days`; for senders
    whose equal requests are repetitions for a short time only."""
    retry: Annotated[
        RetrySchedule | None,
        Shown("Retry", "Schedule of handlers without their own: a preset's name, or seconds as in 5, 60."),
    ] = None
    """Retry schedule of handlers of its events that have none of their own; by default `worker.retry`."""
    public_url: Annotated[
        BaseUrl | None, Shown("Public URL", "The base URL that senders use, such as https://hooks.example.com.")
    ] = None
    """The public URL for this sender, for providers that sign the URL; by default `server.public_url`."""
    methods: Annotated[
        tuple[Literal["GET", "POST", "PUT"], ...] | None,
        Shown("Methods", "GET, POST or PUT; by default those of the sender."),
    ] = None
    """HTTP methods accepted, of `"GET"`, `"POST"` and `"PUT"`; by default the provider's."""
    content_encodings: Annotated[
        Encodings | None, Shown("Content encodings", "gzip or deflate; by default limits.content_encodings.")
    ] = None
    """Content-Encodings decoded, of `"gzip"` and `"deflate"`; by default `limits.content_encodings`."""
    mode: Annotated[
        Literal["store", "inline"], Shown("Replies", "inline lets the handler reply while the sender waits.")
    ] = "store"
    """`"store"`, the default, answers once the event is stored; `"inline"` waits for the handler and sends its
    `event.reply`."""
    reply_within_s: Annotated[
        Positive | None, Shown("Reply within", "Seconds that senders of an inline source wait.")
    ] = None
    """Maximum seconds that the sender waits with `mode = "inline"`; by default 70 % of what it allows, or 2 if that is
    unknown."""
    fallback_status: Annotated[
        Status | None, Shown("Fallback status", "Status if the handler does not reply in time.")
    ] = None
    """Status if the handler gives no reply in time; by default 200. Neither a redirect nor a status that makes senders
    give up."""
    fallback_body: Annotated[
        Annotated[str, Field(max_length=65_536)] | None,
        Shown("Fallback body", "Body if the handler does not reply in time."),
    ] = None
    """Body of that response; by default the reply that the provider expects, or boathook's own."""
    fallback_content_type: Annotated[
        MediaType | None, Shown("Fallback media type", "Media type of the fallback body, such as application/json.")
    ] = None
    """Its media type; by default `text/plain; charset=utf-8`."""
    body_schema: Annotated[
        Any, AfterValidator(_schema), Shown("JSON Schema", "Verified bodies that violate it are rejected.")
    ] = Field(default=None, alias="schema")
    """Format of bodies: a JSON Schema (draft 7), as the table `[sources.NAME.schema]` or as the path of its file,
    relative to the folder of `boathook.toml`; see [handlers](handlers.md#sources-with-a-schema)."""
    header: str | None = None
    """`hmac`, `token`: the header with the signature or token."""
    algorithm: str | None = None
    """`hmac`: the hash, such as `sha256`."""
    encoding: str | None = None
    """`hmac`: the encoding of the signature, `hex` or `base64`."""
    prefix: str | None = None
    """`hmac`: text in front of the signature, such as `sha256=`."""
    template: str | None = None
    """`hmac`: the signed text, such as `{timestamp}.{body}`."""
    timestamp_header: str | None = None
    """`hmac`: the header with the signed timestamp."""
    timestamp_unit: str | None = None
    """`hmac`: the format of the timestamp: `s` (seconds, the default), `ms` or `iso`."""
    id_header: str | None = None
    """`hmac`, `token`, `unsigned`: the header with the event's id."""
    id_path: str | None = None
    """`hmac`, `token`, `unsigned`: the dotted path to the event's id in a JSON body."""
    type_header: str | None = None
    """`hmac`, `token`, `unsigned`: the header with the event's type."""
    type_path: str | None = None
    """`hmac`, `token`, `unsigned`: the dotted path to the event's type in a JSON body."""
    reply_status: int | None = None
    """`hmac`, `token`, `unsigned`: the status that the sender expects for an accepted request, 200 to 299."""
    reply_body: Annotated[str, Field(coerce_numbers_to_str=True)] | None = None
    """`hmac`, `token`, `unsigned`: the body that the sender expects for an accepted request: `OK`."""
    reply_content_type: str | None = None
    """`hmac`, `token`, `unsigned`: the content type of `reply_body`; by default `application/json` for a JSON object or
    array, else `text/plain; charset=utf-8`."""
    key_encoding: str | None = None
    """`hmac`: the encoding of the secret, `text`, `hex` or `base64`."""
    query: str | None = None
    """`token`: the query parameter with the token."""
    username: str | None = None
    """`token`: the user name of basic authentication."""
    password: Secret | None = Field(default=None, repr=False)
    """The password of basic authentication, as `"env:NAME"` or `"file:PATH"`."""

    @property
    def options(self) -> dict[str, Any]:
        """The settings for the provider's recipe; references to secrets are unresolved."""
        own = {key: value for key in _GENERIC_KEYS if (value := getattr(self, key)) is not None}
        return own | (self.model_extra or {})

    @model_validator(mode="after")
    def _check_dedup(self) -> Self:
        if self.dedup_object is not None and self.repeated_body == "refuse":
            raise ValueError(
                'dedup_object expects bodies to come again, which repeated_body = "refuse" rejects; remove one'
            )
        return self

    @model_validator(mode="after")
    def _check_inline(self) -> Self:
        if self.mode == "store":
            for key in _INLINE_KEYS:
                if getattr(self, key) is not None:
                    raise ValueError(f'{key} is for sources whose handler answers; add mode = "inline" or remove it')
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields that may be shown; the recipe's own settings may contain secrets."""
        extra = self.model_extra or {}
        return ((key, value) for key, value in super().__repr_args__() if key not in extra)


FIELDS: dict[str, FieldInfo] = {field.alias or name: field for name, field in SourceSettings.model_fields.items()}
"""By their names in boathook.toml."""
_NAMES = tuple(SourceSettings.model_fields)
_INLINE_KEYS = ("reply_within_s", "fallback_status", "fallback_body", "fallback_content_type")
_GENERIC_KEYS = _NAMES[_NAMES.index("header") : _NAMES.index("password") + 1]
"""Settings of the generic recipes that are declared here, so that they can be set from the environment."""
OWN_KEYS = ("secret", *(key for key in FIELDS if key not in {*_GENERIC_KEYS, "schema"}))
"""Keys that are suggested for a misspelled one; ``schema`` is too similar to the recipes' ``scheme``."""
