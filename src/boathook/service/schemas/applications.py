"""Request models of applications."""

from pydantic import Field

from boathook.service.applications import NewApplication
from boathook.service.schemas.fields import ApplicationUid, Input, Metadata, Name, Rate, not_null_field, renamed_alias


class ApplicationIn(Input):
    """An application."""

    name: Name = Field(examples=["Acme"])
    uid: ApplicationUid | None = Field(default=None, examples=["acme"])
    throttle_rate: Rate | None = Field(default=None, validation_alias=renamed_alias("throttleRate", "rateLimit"))
    metadata: Metadata = Field(default_factory=dict, examples=[{"plan": "pro"}])

    def value(self) -> NewApplication:
        """Return what actions take."""
        return NewApplication(name=self.name, uid=self.uid, throttle_rate=self.throttle_rate, metadata=self.metadata)


class ApplicationPatch(Input):
    """What of an application shall change; null clears uid and throttleRate."""

    name: Name = not_null_field(examples=["Acme"])
    uid: ApplicationUid | None = not_null_field(examples=["acme"])
    throttle_rate: Rate | None = not_null_field(validation_alias=renamed_alias("throttleRate", "rateLimit"))
    metadata: Metadata = not_null_field(dict)
