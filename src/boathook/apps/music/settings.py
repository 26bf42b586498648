"""The table ``[music]`` of boathook.toml."""

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_FROZEN = ConfigDict(extra="forbid", frozen=True)
_MIB = 1_048_576


class StorageSettings(BaseModel):
    """The table ``[music.storage]``: where audio and covers are kept."""

    model_config = _FROZEN

    kind: Literal["folder", "s3"] = "folder"
    folder: Path = Path("music")
    """For ``folder``: where the files lie, below `server.data_dir` unless it is an absolute path.

    Workers on several hosts need the same one.
    """
    endpoint: str = ""
    """For ``s3``: the service's address, such as ``https://s3.eu-central-1.amazonaws.com``."""
    bucket: str = ""
    region: str = "us-east-1"
    key_id: str = ""
    """A text or a reference such as ``env:NAME``, like the two below."""
    secret_key: str = Field(default="", repr=False)
    session_token: str = Field(default="", repr=False)
    timeout_s: float = Field(default=120.0, gt=0)
    """For sending one file."""

    @model_validator(mode="after")
    def _check_s3(self) -> Self:
        if self.kind == "s3":
            for key in ("endpoint", "bucket", "key_id", "secret_key"):
                if not getattr(self, key):
                    raise ValueError(f'{key} is needed with kind = "s3"; add it')
            if not self.endpoint.startswith(("http://", "https://")):
                raise ValueError('endpoint: write an address such as "https://s3.eu-central-1.amazonaws.com"')
        return self


class MusicSettings(BaseModel):
    """Where the callbacks come from, and what is kept of them."""

    model_config = _FROZEN

    provider: Literal["suno", "suno-musicapi", "suno-sunoapi", "hmac", "token", "unsigned"] = "suno"
    """Who proves the callbacks, and how: one of the three families of resellers; ``hmac`` and ``token`` for whoever
    stands between; ``unsigned`` takes everything from everybody."""
    secret: str = Field(default="", repr=False)
    """What the sender signs with, or the token it shows: a text or a reference such as ``env:NAME``."""
    path: str = "/api/suno/callback"
    source: dict[str, Any] = Field(default_factory=dict)
    """More keys of the source, such as ``header`` and ``encoding`` for ``hmac`` or ``query`` for ``token``."""
    reply_within_s: float = Field(default=4.0, gt=0, lt=15)
    """How long a sender is kept waiting to learn whether its track is known; then it is told 202."""
    max_clips: int = Field(default=20, ge=1, le=200)
    """Of one callback; further ones are left out and logged."""
    max_audio: int = Field(default=100 * _MIB, ge=1)
    """Largest audio file in bytes."""
    max_cover: int = Field(default=15 * _MIB, ge=1)
    """Largest cover in bytes."""
    files_at_once: int = Field(default=4, ge=1)
    """How many files are fetched and stored at once, over all workers; keep it below `worker.concurrency`."""
    download_timeout_s: float = Field(default=300.0, gt=0, le=500)
    incoming: Path = Path("music-incoming")
    """Where files lie while they are fetched, unfinished ones included; below `server.data_dir`, as `folder`."""
    urls_days: float = Field(default=14.0, ge=0)
    """How long after a callback its addresses may still answer: a file lost within this time is fetched again."""
    min_age_s: float = Field(default=3_600.0, ge=0)
    """Cleaning leaves alone what is younger: it may be on its way."""
    orphans_days: float = Field(default=7.0, ge=0)
    """Objects that belong to no track are removed after as many days."""
    failed_days: float = Field(default=1.0, ge=0)
    """Objects of failed and deleted tracks are removed after as many days."""
    clean_every_s: float = Field(default=86_400.0, ge=0)
    """Seconds between two cleanings by the keeper; 0: only by hand."""
    log_days: float = Field(default=90.0, gt=0)
    """How long the delivery log remembers callbacks that are done with."""
    storage: StorageSettings = StorageSettings()

    @field_validator("path")
    @classmethod
    def _check_path(cls, value: str) -> str:
        if re.fullmatch(r"/[!-~]*[!-.0-~]", value) is None or any(char in value for char in "?#%"):
            raise ValueError('write a plain path that starts with "/", such as "/api/suno/callback"')
        return value

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.provider != "unsigned" and not self.secret:
            raise ValueError(
                f'secret: the provider {self.provider} proves callbacks with one; add secret = "env:NAME", '
                'or write provider = "unsigned" if anybody may send them'
            )
        return self

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """What would stand in ``[sources.suno]``."""
        return {"suno": {**self._proof(), **self._policy(), **self.source}}

    def _proof(self) -> dict[str, Any]:
        match self.provider:
            case "unsigned":
                return {"provider": "suno", "unsigned": True}
            case "hmac" | "token":
                # The scheme of suno's own recipe, so that deliveries are named alike whoever proves them.
                return {"provider": "suno", "scheme": self.provider, "secrets": [self.secret]}
            case _:
                return {"provider": self.provider, "secrets": [self.secret]}

    def _policy(self) -> dict[str, Any]:
        return {
            "paths": [self.path],
            "mode": "inline",
            "reply_within_s": self.reply_within_s,
            "fallback_status": 202,
            "fallback_body": '{"ok":true,"status":"accepted"}',
            "fallback_content_type": "application/json",
        }
