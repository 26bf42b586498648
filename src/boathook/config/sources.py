"""The settings of one source: boathook's own, and what is handed to the provider's recipe."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from boathook.config.types import (
    BaseUrl,
    Encodings,
    MediaType,
    Networks,
    NotNegative,
    Positive,
    PositiveInt,
    RetrySchedule,
    Secret,
    SourcePath,
    Status,
    Table,
)


def _schema(value: Any) -> Any:
    if value is None or isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise ValueError('must be a table that is a JSON Schema, or the path of a file that holds one, "payment.json"')


class SourceSettings(Table):
    """One source: a provider's recipe, secrets, paths and policy; what is absent follows provider and `[limits]`.

    Keys that are not boathook's own are kept and handed to the provider's recipe, which refuses those it does not know.
    """

    model_config = ConfigDict(extra="allow", frozen=True, serialize_by_alias=True)

    provider: str
    """The recipe's name; the source's own name where absent."""
    secrets: tuple[Secret, ...] = Field(default=(), repr=False)
    """References such as ``env:NAME``; any of them may have signed. `Settings.secrets_of` resolves them."""
    paths: tuple[SourcePath, ...] = ()
    unsigned: bool = False
    addresses: Networks = ()
    """Networks requests may come from, besides what the provider's proof demands; none given: any."""
    tolerance_s: Positive | None = None
    max_body: PositiveInt | None = None
    rate: NotNegative | None = None
    """Requests a second; absent or 0: no limit."""
    burst: PositiveInt | None = None
    dedup_fields: tuple[str, ...] = ()
    dedup_days: Positive | None = None
    retry: RetrySchedule | None = None
    """When handlers of its events try again that name no policy of their own; None: `worker.retry`."""
    public_url: BaseUrl | None = None
    methods: tuple[Literal["GET", "POST", "PUT"], ...] | None = None
    content_encodings: Encodings | None = None
    mode: Literal["store", "inline"] = "store"
    """Whether the sender is answered once the event is stored, or by the handler."""
    reply_within_s: Positive | None = None
    """How long the sender is kept waiting for the handler; None: a share of what the provider's recipe allows."""
    fallback_status: Status | None = None
    fallback_body: Annotated[str, Field(max_length=65_536)] | None = None
    fallback_content_type: MediaType | None = None
    body_schema: Annotated[Any, AfterValidator(_schema)] = Field(default=None, alias="schema")
    """What proven bodies must look like: a JSON Schema, or the path of its file, relative to boathook.toml's folder."""
    header: str | None = None
    algorithm: str | None = None
    encoding: str | None = None
    prefix: str | None = None
    template: str | None = None
    timestamp_header: str | None = None
    id_header: str | None = None
    id_path: str | None = None
    type_header: str | None = None
    type_path: str | None = None
    key_encoding: str | None = None
    query: str | None = None
    username: str | None = None
    password: Secret | None = Field(default=None, repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """The settings given for the provider's recipe; references to secrets unresolved."""
        own = {key: value for key in _GENERIC_KEYS if (value := getattr(self, key)) is not None}
        return own | (self.model_extra or {})

    @model_validator(mode="after")
    def _check_inline(self) -> Self:
        if self.mode == "store":
            for key in _INLINE_KEYS:
                if getattr(self, key) is not None:
                    raise ValueError(f'{key} is for sources whose handler answers; add mode = "inline" or remove it')
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what may be shown: the recipe's own settings may hold secrets."""
        extra = self.model_extra or {}
        return ((key, value) for key, value in super().__repr_args__() if key not in extra)


FIELDS: dict[str, FieldInfo] = {field.alias or name: field for name, field in SourceSettings.model_fields.items()}
"""By the names they have in boathook.toml."""
_NAMES = tuple(SourceSettings.model_fields)
_INLINE_KEYS = ("reply_within_s", "fallback_status", "fallback_body", "fallback_content_type")
_GENERIC_KEYS = _NAMES[_NAMES.index("header") :]
"""Settings of the generic recipes that are typed here, so that they can be set from the environment."""
OWN_KEYS = ("secret", *(key for key in FIELDS if key not in {*_GENERIC_KEYS, "schema"}))
"""Those that a slip may have been meant to be; ``schema`` is too near to ``scheme``, which recipes have."""
