"""The fields that several tools take."""

from datetime import datetime
from typing import Annotated

from boathook.service.fields import Rule

Name = Annotated[str, Rule(max_length=256)]
Application = Annotated[Name, Rule(help="Application id or uid.")]
Source = Annotated[Name, Rule(help="Source name.")]
EventType = Annotated[Name, Rule(help="Event type; * matches any characters.", example="invoice.*")]
Since = Annotated[datetime | None, Rule(help="From this time on, such as 2h, 7d or 2026-01-31T12:00Z.")]
Until = Annotated[datetime | None, Rule(help="Before this time.")]
Code = Annotated[Name, Rule(help="Error code.", example="HTTP_503")]
Recipient = Annotated[Name, Rule(help="Recipient; * matches any characters.", example="endpoint:ep_*")]
Limit = Annotated[int, Rule(minimum=1, maximum=50)]
