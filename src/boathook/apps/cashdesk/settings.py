"""The table ``[cashdesk]`` of boathook.toml."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class DriveSettings(BaseModel):
    """How the simulated fiscal drive behaves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: Annotated[float, Field(ge=0, le=60)] = 0.2
    """How long it works on one receipt."""
    busy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of attempts at which it does not answer."""
    largest: Annotated[int, Field(gt=0)] = 100_000_000
    """The largest total it takes, in minor units; others it declines."""
    seed: str = "boathook"
    """Two drives with the same seed sign, and fail, alike."""


class CashdeskSettings(BaseModel):
    """The cabinet's own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_webhooks: Annotated[int, Field(ge=1, le=500)] = 20
    """Most webhooks of one user."""
    session_hours: Annotated[float, Field(gt=0, le=720)] = 12.0
    """How long a login to the pages lasts."""
    public_url: Annotated[str, Field(pattern=r"^(https?://[^/]+)?$")] = ""
    """The address users see, such as ``https://cabinet.example``, where a proxy stands in front."""
    drive: DriveSettings = DriveSettings()
