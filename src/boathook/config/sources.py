"""The settings of one source: boathook's own keys and those of the provider's recipe."""

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
    raise ValueError('must be a table that is a JSON Schema, or the path of a file with one, "payment.json"')


class SourceSettings(Table):
    """One source: a provider's recipe, secrets, paths and policy; missing keys default to the provider and `[limits]`.

    Other keys are kept and passed to the provider's recipe, which rejects unknown ones.
    """

    model_config = ConfigDict(extra="allow", frozen=True, serialize_by_alias=True)

    provider: str
    """The recipe's name; defaults to the source's name."""
    secrets: tuple[Secret, ...] = Field(default=(), repr=False)
    """References such as ``env:NAME``; a request may be signed with any of them. `Settings.secrets_of` resolves
    them."""
    paths: tuple[SourcePath, ...] = ()
    unsigned: bool = False
    addresses: Networks = ()
    """Networks from which requests are accepted, in addition to the provider's own check; empty for any."""
    tolerance_s: Positive | None = None
    max_body: PositiveInt | None = None
    rate: NotNegative | None = None
    """Requests per second; None or 0 for no limit."""
    burst: PositiveInt | None = None
    dedup_fields: tuple[str, ...] = ()
    dedup_days: Positive | None = None
    retry: RetrySchedule | None = None
    """Retry schedule of handlers for its events that set no policy; None uses `worker.retry`."""
    public_url: BaseUrl | None = None
    methods: tuple[Literal["GET", "POST", "PUT"], ...] | None = None
    content_encodings: Encodings | None = None
    mode: Literal["store", "inline"] = "store"
    """Whether the sender gets its reply once the event is stored, or from the handler."""
    reply_within_s: Positive | None = None
    """Maximum time that the sender waits for the handler; None uses a fraction of the time that the provider allows."""
    fallback_status: Status | None = None
    fallback_body: Annotated[str, Field(max_length=65_536)] | None = None
    fallback_content_type: MediaType | None = None
    body_schema: Annotated[Any, AfterValidator(_schema)] = Field(default=None, alias="schema")
    """The JSON Schema for verified bodies, or the path of its file, relative to the folder of boathook.toml."""
    header: str | None = None
    algorithm: str | None = None
    encoding: str | None = None
    prefix: str | None = None
    template: str | None = None
    timestamp_header: str | None = None
    timestamp_unit: str | None = None
    id_header: str | None = None
    id_path: str | None = None
    type_header: str | None = None
    type_path: str | None = None
    reply_status: int | None = None
    reply_body: Annotated[str, Field(coerce_numbers_to_str=True)] | None = None
    reply_content_type: str | None = None
    key_encoding: str | None = None
    query: str | None = None
    username: str | None = None
    password: Secret | None = Field(default=None, repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """The settings for the provider's recipe; references to secrets are unresolved."""
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
