"""Fields that several resources or actions have."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from boathook.domain import ids
from boathook.domain.endpoints import check_uid
from boathook.service.fields import Rule

NAME_PATTERN: Final = r"[a-zA-Z0-9\-_.]{1,256}"
_NAME_FORM: Final = "1 to 256 letters, digits, - _ and ."

Description = Annotated[str, Rule(help="Description.", description=None, max_length=4_096)]
ThrottleRate = Annotated[int, Rule(unit="a second", minimum=1, maximum=65_535, former_name="rateLimit")]
Metadata = Annotated[
    Mapping[str, str], Rule(help="Your own values, by name.", description=None, max_bytes=4_096, metavar="KEY=VALUE")
]
_Uid = Annotated[
    str,
    Rule(
        help="Your own identifier, usable in place of the id.", description=None, pattern=NAME_PATTERN, form=_NAME_FORM
    ),
]
ApplicationUid = Annotated[_Uid, Rule(check=partial(check_uid, prefix=ids.APPLICATION), example="acme")]
EndpointUid = Annotated[_Uid, Rule(check=partial(check_uid, prefix=ids.ENDPOINT), example="crm")]
KeyName = Annotated[str, Rule(help="Label.", min_length=1, max_length=200)]
SessionName = Annotated[
    str,
    Rule(
        help="Name of a portal session.", pattern=r"[a-zA-Z0-9@_\-.]{1,64}", form="1 to 64 letters, digits and @ _ - ."
    ),
]
Flag = Annotated[str, Rule(help="Feature flag.", min_length=1, max_length=256)]
Note = Annotated[str, Rule(help="Reason, kept in the audit.", max_length=2_000, example="the receiver is back")]


def _require_text(note: str) -> None:
    if not note.strip():
        raise ValueError("write a note that says why; it is kept")


RequiredNote = Annotated[Note, Rule(check=_require_text)]
Pace = Annotated[float, Rule(help="Maximum per second.", unit="a second", minimum=0.001, maximum=100_000)]
"""Deliveries a second of a replay."""
UserName = Annotated[str, Rule(pattern="[^:]*", form="a user name without a colon", max_length=1_024)]
Password = Annotated[str, Rule(max_length=4_096, is_secret=True)]
Credential = Annotated[str, Rule(min_length=1, max_length=4_096, is_secret=True)]
"""An id or a secret of an OAuth client."""
