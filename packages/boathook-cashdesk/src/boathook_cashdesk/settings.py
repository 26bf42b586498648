"""The table ``[cashdesk]`` of boathook.toml."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from boathook_cashdesk.wire import Format
from boathook_pages.languages import LanguageSetting, TimeZone

SIMULATED: Final = "simulated"


class DriveSettings(BaseModel):
    """The fiscal drive: the simulated one with its configuration, or a plug-in's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = SIMULATED
    """``simulated``, or the name of an entry point in the group ``boathook.cashdesk.drives``."""
    options: Mapping[str, Any] = {}
    """What the plug-in is given; the simulated drive has the keys below instead."""

    seconds: Annotated[float, Field(ge=0, le=60)] = 0.2
    """Seconds per receipt."""
    busy: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of attempts that fail because it is busy."""
    largest: Annotated[int, Field(gt=0)] = 100_000_000
    """Maximum total it accepts, in minor units; it declines larger ones."""
    seed: str = "boathook"
    """Drives with the same seed return the same signs and failures."""

    @property
    def is_simulated(self) -> bool:
        """Whether no receipt is really recorded."""
        return self.name == SIMULATED

    @model_validator(mode="after")
    def _check_keys(self) -> "DriveSettings":
        names = self.model_fields_set - {"name"}
        if self.is_simulated and "options" in names:
            raise ValueError("the simulated drive has no options; its keys are those of [cashdesk.drive]")
        if not self.is_simulated and (surplus := sorted(names - {"options"})):
            keys = ", ".join(surplus)
            raise ValueError(f"the drive {self.name!r} has no {keys}; write its keys under [cashdesk.drive.options]")
        return self


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
    language: LanguageSetting = "auto"
    """The language of pages and messages: ``en`` or ``ru`` for everybody, or the user's own choice."""
    time_zone: TimeZone = "UTC"
    """The zone in which pages show times, such as ``Europe/Moscow``."""
    drive: DriveSettings = DriveSettings()
