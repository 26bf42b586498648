"""The settings of an app's storage of files, and the storage that they describe."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from boathook import Boathook, ConfigError
from boathook_app_tools.storage import LocalFolder

if TYPE_CHECKING:
    from boathook_app_tools.s3 import S3


class StorageSettings(BaseModel):
    """The table ``[APP.storage]``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["folder", "s3"] = "folder"
    folder: Path | None = None
    """For ``folder``: the path of the files, relative to `server.data_dir` unless it is absolute; the app's name by
    default.

    Workers on several hosts need the same one.
    """
    endpoint: str = ""
    """For ``s3``: the service's URL, such as ``https://s3.eu-central-1.amazonaws.com``."""
    bucket: str = ""
    region: str = "us-east-1"
    key_id: str = ""
    """A text or a reference such as ``env:NAME``, like the two below."""
    secret_key: str = Field(default="", repr=False)
    session_token: str = Field(default="", repr=False)
    timeout_s: float = Field(default=120.0, gt=0)
    """Timeout in seconds for sending one file."""

    @model_validator(mode="after")
    def _check_s3(self) -> Self:
        if self.kind == "s3":
            for key in ("endpoint", "bucket", "key_id", "secret_key"):
                if not getattr(self, key):
                    raise ValueError(f'{key} is needed with kind = "s3"; add it')
            if not self.endpoint.startswith(("http://", "https://")):
                raise ValueError('endpoint: write an address such as "https://s3.eu-central-1.amazonaws.com"')
        return self


def open_storage(hook: Boathook, settings: StorageSettings) -> "LocalFolder | S3":
    """Return the storage of an app, whose table has *settings* as ``storage``.

    Raises:
        ConfigError: a secret reference cannot be resolved, or the package for buckets is not installed.
    """
    if settings.kind == "folder":
        return LocalFolder(hook.data_dir / (settings.folder or hook.name))
    names = ("key_id", "secret_key", "session_token")
    http: Any = hook.http
    return _bucket(
        http,
        endpoint=settings.endpoint,
        name=settings.bucket,
        region=settings.region,
        timeout_s=settings.timeout_s,
        **{name: hook.resolve(getattr(settings, name), f"storage.{name}") for name in names},
    )


@lru_cache(maxsize=1)
def _bucket(http: Any, **values: Any) -> "S3":
    try:
        from boathook_app_tools.s3 import S3, Bucket
    except ImportError:
        raise ConfigError(
            'storage.kind: "s3" needs the package botocore; run pip install "boathook-app-tools[s3]"'
        ) from None
    return S3(Bucket(**values), http)
