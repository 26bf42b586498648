"""The errors of the shared rate store."""

from boathook.domain.errors import BoathookError


class RedisUnavailable(BoathookError):
    """Redis does not answer in time, or not as it should."""
