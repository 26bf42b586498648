"""Hashes passwords and compares them, for operators and for the users of apps.

Passwords are hashed with Argon2id (RFC 9106), with the parameters that its library recommends.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from boathook.domain.errors import InvalidValue, LimitReached

Result = TypeVar("Result")

MIN_PASSWORD_LENGTH: Final = 12
MAX_PASSWORD_LENGTH: Final = 1_024
HASHER: Final = PasswordHasher()
_DUMMY_HASH: Final = "$argon2id$v=19$m={0.memory_cost},t={0.time_cost},p={0.parallelism}${1}${2}".format(
    HASHER, "A" * 22, "A" * 43
)
"""Hash that passwords of unknown names are compared with, so that an unknown name takes as long as a known one. Its
salt and hash are zeros, for which no password is known; computing a real hash would slow down each start.
"""
PASSWORD_POOL: Final = ThreadPoolExecutor(1, "passwords")
"""One thread: each hash takes 64 MiB and much of a second on several cores, which event processing needs too."""
MAX_WAITING: Final = 8
"""Above this queue length, callers are rejected: unauthenticated clients can request any number of comparisons."""
_waiting = 0


async def hash_password(password: str) -> str:
    """Return the hash of a new password.

    Raises:
        InvalidValue: the password is too short or too long.
        LimitReached: too many passwords wait to be compared.
    """
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise InvalidValue(
            f"a password has at least {MIN_PASSWORD_LENGTH} characters and at most {MAX_PASSWORD_LENGTH}",
            "password",
        )
    return await _run_in_pool(HASHER.hash, password)


async def is_password(password_hash: str | None, password: str) -> bool:
    """Return whether this is the password of a hash; without a hash it takes as long. Raises LimitReached."""
    if len(password) > MAX_PASSWORD_LENGTH:
        return False
    try:
        await _run_in_pool(HASHER.verify, password_hash or _DUMMY_HASH, password)
    except (VerifyMismatchError, InvalidHashError):
        return False
    return password_hash is not None


async def rehash_if_weak(password_hash: str, password: str) -> str | None:
    """Return a new hash of the right password if the stored one has weaker parameters, else None."""
    return await _run_in_pool(HASHER.hash, password) if HASHER.check_needs_rehash(password_hash) else None


async def _run_in_pool(work: Callable[..., Result], *values: str) -> Result:
    global _waiting  # noqa: PLW0603 - like the thread pool, it is one per process
    if _waiting > MAX_WAITING:
        raise LimitReached("too many sign-ins are in progress; try again in a few seconds")
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(PASSWORD_POOL, work, *values)
    finally:
        _waiting -= 1
