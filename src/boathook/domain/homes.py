"""The homes of sources: each source belongs to one installation of boathook, which stores its events."""

import msgspec


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The home that a source was assigned to.

    Installations may disagree for a moment: the highest revision is right.
    """

    source: str
    home: str
    """The name of the installation."""
    revision: int
