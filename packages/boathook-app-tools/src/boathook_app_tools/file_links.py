"""Signed links to an app's stored files, for browsers and players: of the bucket, or of this server for a folder."""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import FileResponse

from boathook import Boathook, Transaction
from boathook_app_tools.statements import load_statements
from boathook_app_tools.storage import LocalFolder, Storage
from boathook_pages import ApiRequest, JsonApi, Missing, Refusal
from boathook_pages.languages import Languages

MAX_S: Final = 3_600
"""The longest time for which a link is accepted, even if its signature is right."""
_HEADERS: Final = {
    "cache-control": "private, no-store",
    "content-security-policy": "default-src 'none'; sandbox",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class FileLinks:
    """The links to the files of one app, which has the table ``link_key (is_only, key)``. Deleting the key ends all.

    Args:
        hook: the app.
        path: where files in a folder are served.
        languages: those of the app.
        storage: returns the storage.
        lifetime_s: returns for how long a link works; at most `MAX_S`.
        public_url: returns the beginning of links to this server; empty: they are paths.
        content_type: returns that of a stored file by its key; None if there is none to be served.
    """

    def __init__(
        self,
        hook: Boathook,
        path: str,
        languages: Languages,
        *,
        storage: Callable[[], Storage],
        lifetime_s: Callable[[], int],
        public_url: Callable[[], str],
        content_type: Callable[[Transaction, str], Awaitable[str | None]],
    ) -> None:
        self._hook = hook
        self._path = path
        self._texts = Languages(Path(__file__).with_name("locale"), setting=lambda: languages.current)
        self._storage = storage
        self._lifetime_s = lifetime_s
        self._public_url = public_url
        self._content_type = content_type
        # The schema is the app's name, which boathook has checked.
        self._sql = {name: sql.replace("{schema}", hook.name) for name, sql in load_statements(__file__).items()}
        # Open, because the link is the permission.
        api = JsonApi(hook, None, languages, path)
        api.add("/{key:path}", GET=self._serve)
        api.mount(is_open=True)

    async def with_links(self, tx: Transaction, files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return files with ``link`` and ``link_expires_at``, which are None for those that are not stored.

        Raises:
            ConfigError: a secret of the storage cannot be resolved.
        """
        lifetime_s = self._lifetime_s()
        expires_at = (datetime.now(UTC) + timedelta(seconds=lifetime_s)).replace(microsecond=0)
        linked = []
        for file in files:
            link = None
            if file["state"] == "stored":
                link = await self._storage().link(file["key"], lifetime_s)
                if link is None:
                    path = self.sign(await self._secret(tx), file["key"], int(expires_at.timestamp()))
                    link = self._public_url().rstrip("/") + path
            linked.append({**file, "link": link, "link_expires_at": expires_at if link else None})
        return linked

    def sign(self, secret: bytes, key: str, expires: int) -> str:
        """Return the path of a link to the object *key* until *expires*, in seconds since 1970."""
        return (
            f"{self._path}/{quote(key, safe='/')}?expires={expires}&signature={_signature(secret, key, str(expires))}"
        )

    async def _is_valid(self, tx: Transaction, key: str, expires: str, signature: str) -> bool:
        if not (expires.isascii() and expires.isdigit() and len(expires) <= 12 and signature.isascii()):
            return False
        # A link that is valid for longer was not made here, even if it is signed.
        if not 0 < int(expires) - datetime.now(UTC).timestamp() <= MAX_S:
            return False
        return hmac.compare_digest(signature, _signature(await self._secret(tx), key, expires))

    async def _secret(self, tx: Transaction) -> bytes:
        """Return the key of all links, which PostgreSQL keeps for all processes."""
        if (secret := await tx.fetchval(self._sql["get_key"])) is None:
            await tx.execute(self._sql["add_key"], secrets.token_bytes(32))
            secret = await tx.fetchval(self._sql["get_key"])
        return bytes(secret)

    async def _serve(self, request: ApiRequest) -> FileResponse:
        """Send a stored file to the holder of a link; parts of it on request."""
        key, storage = request.path["key"], self._storage()
        if not await self._is_valid(request.tx, key, request.query("expires") or "", request.query("signature") or ""):
            text = self._texts.gettext("this link is not valid or has expired; ask for a new one")
            raise Refusal(text, status=403, code="invalid_link")
        content_type = await self._content_type(request.tx, key)
        if content_type is None or not isinstance(storage, LocalFolder) or await storage.head(key) is None:
            raise Missing(self._texts.gettext("there is no such file"))
        return FileResponse(storage.path(key), media_type=content_type, headers=_HEADERS)


def _signature(secret: bytes, key: str, expires: str) -> str:
    return hmac.new(secret, f"{expires}\n{key}".encode("utf-8", "surrogatepass"), "sha256").hexdigest()
