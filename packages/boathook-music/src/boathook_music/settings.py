"""The table ``[music]`` of boathook.toml."""

import re
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from boathook_app_tools.storage_settings import StorageSettings
from boathook_pages.languages import LanguageSetting, gettext_noop

_FROZEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
_MIB = 1_048_576
_PATH: Final = "/generate-music-callb"
_SUPABASE: Final = "/functions/v1"
"""Below which Supabase serves functions, such as the one whose callbacks the app takes over."""


def _check_address(value: str, example: str) -> str:
    if re.fullmatch(r"https?://[!-~]+", value) is None or any(char in value for char in "?#@"):
        raise ValueError(f'write an address such as "{example}"')
    return value


def _check_path(value: str, example: str) -> str:
    if re.fullmatch(r"/[!-~]*[!-.0-~]", value) is None or any(char in value for char in "?#%"):
        raise ValueError(f'write a plain path that starts with "/", such as "{example}"')
    return value


def problem_of_application(uid: str) -> str | None:
    """Return why an application cannot have this uid, with the placeholder ``uid``; None if it can."""
    if uid == "music":
        return gettext_noop('the application "music" is the app\'s own; use another one')
    if re.fullmatch(r"(?!app_)(?!\.\.?$)[A-Za-z0-9_.-]{1,256}", uid) is None:
        return gettext_noop('%(uid)r is not the uid of an application; use 1 to 256 letters, digits, "-", "_" and "."')
    return None


class LookupSettings(BaseModel):
    """The table ``[music.lookup]``: asking kie.ai or sunoapi.org for songs whose callback has not come."""

    model_config = _FROZEN

    key: str = Field(default="", repr=False)
    """The reseller's API key: a text or a reference such as ``env:NAME``. Without it, nothing is asked."""
    url: str = "https://api.sunoapi.org"
    """The reseller's API; for kie.ai ``https://api.kie.ai``."""
    after_s: float = Field(default=600.0, gt=0)
    """Seconds without news after which a song is asked for; each further pause is twice as long."""
    max_interval_s: float = Field(default=3_600.0, gt=0)
    """Maximum seconds between two questions about a song."""
    stop_after_h: float = Field(default=336.0, gt=0)
    """Hours after a song's order when asking ends: resellers delete files after 14 or 15 days."""
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    """Timeout in seconds of one request."""
    credits_every_s: float = Field(default=300.0, ge=0)
    """Seconds between two requests for the account's remaining credits; 0 disables them."""
    credits_path: str = ""
    """Their route in the reseller's API; empty: as kie.ai, sunoapi.com or sunoapi.org has it, by the host of `url`."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return _check_address(value, "https://api.sunoapi.org")

    @field_validator("credits_path")
    @classmethod
    def _check_credits_path(cls, value: str) -> str:
        return _check_path(value, "/api/v1/generate/credit") if value else value


class MusicSettings(BaseModel):
    """The sender of callbacks, and the storage of their files."""

    model_config = _FROZEN

    provider: Literal["suno", "suno-musicapi", "suno-sunoapi", "hmac", "token", "unsigned"] = "suno"
    """The proof of callbacks: one of the three families of resellers; ``hmac`` and ``token`` for a proxy with its own
    proof; ``unsigned`` accepts all requests."""
    secret: str = Field(default="", repr=False)
    """The signing key of the sender, or the token it sends: a text or a reference such as ``env:NAME``."""
    language: LanguageSetting = "auto"
    """The language of messages of commands, alerts and ``/api/music``: ``en``, ``ru``, or ``auto``, that of the request
    for the API and else English."""
    path: str = _PATH
    """Path of the callbacks. The default is also accepted below ``/functions/v1``, where Supabase serves functions."""
    source: dict[str, Any] = Field(default_factory=dict)
    """Additional keys of the source, such as ``header`` and ``encoding`` for ``hmac`` or ``query`` for ``token``."""
    reply_within_s: float = Field(default=4.0, gt=0, lt=15)
    """Seconds a sender waits to learn whether its track is known; after that the reply is 202."""
    max_clips: int = Field(default=20, ge=1, le=200)
    """Maximum clips of one callback; further ones are dropped and logged."""
    max_audio: int = Field(default=100 * _MIB, ge=1)
    """Maximum size of an audio file in bytes."""
    max_cover: int = Field(default=15 * _MIB, ge=1)
    """Maximum size of a cover in bytes."""
    files_at_once: int = Field(default=4, ge=1)
    """Maximum files fetched and stored concurrently, over all workers; keep it below `worker.concurrency`."""
    download_timeout_s: float = Field(default=300.0, gt=0, le=500)
    incoming: Path = Path("music-incoming")
    """The folder for downloads in progress and unfinished ones; relative to `server.data_dir`, like `folder`."""
    urls_days: float = Field(default=14.0, ge=0)
    """Days after a callback during which its URLs may still work: a file lost within this time is fetched again."""
    min_age_s: float = Field(default=3_600.0, ge=0)
    """Cleaning skips objects younger than this, because they may still be in progress."""
    orphans_days: float = Field(default=7.0, ge=0)
    """Days after which objects that belong to no track are removed."""
    failed_days: float = Field(default=1.0, ge=0)
    """Days after which objects of failed and deleted tracks are removed."""
    clean_every_s: float = Field(default=86_400.0, ge=0)
    """Seconds between two cleanups by the keeper; 0 disables them."""
    links_s: int = Field(default=3_600, ge=1, le=3_600)
    """Seconds for which a signed link to a stored file works."""
    public_url: str = ""
    """The URL at which users reach this server, the beginning of links to files in a folder; without it, links are
    paths. Links to a bucket begin with its endpoint."""
    log_days: float = Field(default=90.0, gt=0)
    """Days that the delivery log keeps finished callbacks."""
    overdue_s: float = Field(default=3_600.0, gt=0)
    """Seconds without news of an unfinished song after which the alert ``music.overdue_tracks`` fires."""
    application: str = ""
    """The application to whose endpoints the events ``track.ready`` and ``track.failed`` of those tracks are sent that
    name none; empty: they are not sent."""
    lookup: LookupSettings = LookupSettings()
    storage: StorageSettings = StorageSettings()

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, value: str) -> str:
        if value:
            _check_address(value, "https://music.example.com")
        return value

    @field_validator("path")
    @classmethod
    def _check_callback_path(cls, value: str) -> str:
        return _check_path(value, _PATH)

    @field_validator("application")
    @classmethod
    def _check_application(cls, value: str) -> str:
        if value and (problem := problem_of_application(value)):
            raise ValueError(problem % {"uid": value[:100]})
        return value

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.provider != "unsigned" and not self.secret:
            raise ValueError(
                f'secret: the provider {self.provider} needs a secret; add secret = "env:NAME", '
                'or write provider = "unsigned" to accept callbacks of any sender'
            )
        return self

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """The content of ``[sources.suno]``."""
        return {"suno": {**self._proof(), **self._policy(), **self.source}}

    def _proof(self) -> dict[str, Any]:
        match self.provider:
            case "unsigned":
                return {"provider": "suno", "unsigned": True}
            case "hmac" | "token":
                # The schemes of suno's own recipe, so that deliveries have the same ids with every proof.
                return {"provider": "suno", "scheme": self.provider, "secrets": [self.secret]}
            case _:
                return {"provider": self.provider, "secrets": [self.secret]}

    def _policy(self) -> dict[str, Any]:
        return {
            "paths": [self.path, _SUPABASE + self.path] if self.path == _PATH else [self.path],
            "mode": "inline",
            "reply_within_s": self.reply_within_s,
            "fallback_status": 202,
            "fallback_body": '{"ok":true,"status":"accepted"}',
            "fallback_content_type": "application/json",
            # A callback without a delivery id is known by task and stage. One that comes again under another delivery
            # id is known by its body.
            "repeated_body": "refuse",
        }
