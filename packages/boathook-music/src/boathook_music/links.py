"""Signed links to stored files, for players and browsers: of the bucket, or of `routes` for files in a folder."""

import hmac
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from boathook import Transaction
from boathook_music.app import settings, storage
from boathook_music.storage import LocalFolder

PATH: Final = "/api/music/files"
MAX_S: Final = 3_600
"""The longest time for which a link is accepted, even if its signature is right."""
_KEY: Final = "select key from music.link_key"
_NEW_KEY: Final = "insert into music.link_key (key) values ($1) on conflict do nothing"


async def with_links(tx: Transaction, files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return files with ``link`` and ``link_expires_at``, which are None for those that are not stored.

    Raises:
        ConfigError: a secret of the storage cannot be resolved.
    """
    if not any(file["state"] == "stored" for file in files):
        return [{**file, "link": None, "link_expires_at": None} for file in files]
    place, config, now = storage(), settings(), datetime.now(UTC)
    expires_at = (now + timedelta(seconds=config.links_s)).replace(microsecond=0)
    secret = await _secret(tx) if isinstance(place, LocalFolder) else b""
    linked = []
    for file in files:
        if file["state"] != "stored":
            linked.append({**file, "link": None, "link_expires_at": None})
            continue
        if isinstance(place, LocalFolder):
            link = config.public_url.rstrip("/") + sign(secret, file["key"], int(expires_at.timestamp()))
        else:
            link = await place.link(file["key"], int(config.links_s))
        linked.append({**file, "link": link, "link_expires_at": expires_at})
    return linked


def sign(secret: bytes, key: str, expires: int) -> str:
    """Return the path of a link to the object *key* until *expires*, in seconds since 1970."""
    return f"{PATH}/{quote(key, safe='/')}?expires={expires}&signature={_signature(secret, key, str(expires))}"


async def is_valid(tx: Transaction, key: str, expires: str, signature: str) -> bool:
    """Return whether a link to *key* was signed here and has not expired."""
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 12):
        return False
    left_s = int(expires) - datetime.now(UTC).timestamp()
    # A link that is valid for longer was not made here, even if it is signed.
    if not 0 < left_s <= MAX_S or not signature.isascii():
        return False
    return hmac.compare_digest(signature, _signature(await _secret(tx), key, expires))


async def _secret(tx: Transaction) -> bytes:
    """Return the key of all links, which PostgreSQL keeps for all processes; deleting it ends all links."""
    if (secret := await tx.fetchval(_KEY)) is None:
        await tx.execute(_NEW_KEY, secrets.token_bytes(32))
        secret = await tx.fetchval(_KEY)
    return bytes(secret)


def _signature(secret: bytes, key: str, expires: str) -> str:
    return hmac.new(secret, f"{expires}\n{key}".encode("utf-8", "surrogatepass"), "sha256").hexdigest()
