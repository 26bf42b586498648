"""Signed links to stored files, for players and browsers: of the bucket, or of `routes` for files in a folder."""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_music.app import settings, storage

SQL: Final = load_statements(__file__)
PATH: Final = "/api/music/files"
MAX_S: Final = 3_600
"""The longest time for which a link is accepted, even if its signature is right."""


async def with_links(tx: Transaction, files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return files with ``link`` and ``link_expires_at``, which are None for those that are not stored.

    Raises:
        ConfigError: a secret of the storage cannot be resolved.
    """
    lifetime_s = settings().links_s
    expires_at = (datetime.now(UTC) + timedelta(seconds=lifetime_s)).replace(microsecond=0)
    linked = []
    for file in files:
        link = None
        if file["state"] == "stored":
            link = await storage().link(file["key"], lifetime_s)
            if link is None:
                path = sign(await _secret(tx), file["key"], int(expires_at.timestamp()))
                link = settings().public_url.rstrip("/") + path
        linked.append({**file, "link": link, "link_expires_at": expires_at if link else None})
    return linked


def sign(secret: bytes, key: str, expires: int) -> str:
    """Return the path of a link to the object *key* until *expires*, in seconds since 1970."""
    return f"{PATH}/{quote(key, safe='/')}?expires={expires}&signature={_signature(secret, key, str(expires))}"


async def is_valid(tx: Transaction, key: str, expires: str, signature: str) -> bool:
    """Return whether a link to *key* was signed here and has not expired."""
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 12 and signature.isascii()):
        return False
    # A link that is valid for longer was not made here, even if it is signed.
    if not 0 < int(expires) - datetime.now(UTC).timestamp() <= MAX_S:
        return False
    return hmac.compare_digest(signature, _signature(await _secret(tx), key, expires))


async def _secret(tx: Transaction) -> bytes:
    """Return the key of all links, which PostgreSQL keeps for all processes; deleting it ends all links."""
    if (secret := await tx.fetchval(SQL["get_key"])) is None:
        await tx.execute(SQL["add_key"], secrets.token_bytes(32))
        secret = await tx.fetchval(SQL["get_key"])
    return bytes(secret)


def _signature(secret: bytes, key: str, expires: str) -> str:
    return hmac.new(secret, f"{expires}\n{key}".encode("utf-8", "surrogatepass"), "sha256").hexdigest()
