"""The table ``[cashdesk]`` of boathook.toml."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from boathook.apps.cashdesk.wire import Format


class DriveSettings(BaseModel):
    """Configuration of the simulated fiscal drive."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: Annotated[float, Field(ge=0, le=60)] = 0.2
    """Seconds per receipt."""
    busy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of attempts that fail because it is busy."""
    largest: Annotated[int, Field(gt=0)] = 100_000_000
    """Maximum total it accepts, in minor units; it declines larger ones."""
    seed: str = "boathook"
    """Drives with the same seed return the same signs and failures."""


class CashdeskSettings(BaseModel):
    """The cabinet's own settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Format = "dreamkas"
    """Format of webhooks: Dreamkas' documented one, or boathook's own, which was the only one before."""
    max_webhooks: Annotated[int, Field(ge=1, le=500)] = 20
    """Maximum webhooks of one user."""
    session_hours: Annotated[float, Field(gt=0, le=720)] = 12.0
    """How long a login to the pages lasts."""
    public_url: Annotated[str, Field(pattern=r"^(https?://[^/]+)?$")] = ""
    """The URL for users, such as ``https://cabinet.example``, if there is a proxy in front."""
    drive: DriveSettings = DriveSettings()
