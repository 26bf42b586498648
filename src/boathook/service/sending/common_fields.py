"""Fields that several resources have."""

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
