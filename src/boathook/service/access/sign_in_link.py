"""Tokens that sign in to the console once, for the link that `boathook dev` prints.

A token is 32 random bytes. Its SHA-256 is the name of a file in the data folder, which only the account that runs
boathook can write. The file is deleted before the token is accepted, so all gateways of this host together accept it
once. No other command makes such a file.
"""

import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

from boathook.service.access.keys import hash_token

LINK_PATH: Final = "/console/sign-in/link"
LIFETIME_S: Final = 600.0
"""How long a token can be used."""
_FOLDER: Final = "sign-in"


def create_token(data_dir: Path) -> str:
    """Return a new token; earlier ones are revoked."""
    revoke_tokens(data_dir)
    folder = data_dir / _FOLDER
    folder.mkdir(mode=0o700, parents=True)
    token = secrets.token_urlsafe(32)
    descriptor = os.open(_file(data_dir, token), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(str(time.time() + LIFETIME_S))
    return token


def redeem_token(data_dir: Path, token: str) -> bool:
    """Return whether a token is valid; from then on it is not."""
    file = _file(data_dir, token)
    try:
        expires_at = float(file.read_text(encoding="ascii"))
        file.unlink()
    except (OSError, ValueError):
        return False  # unknown, or another request was first
    return time.time() < expires_at


def revoke_tokens(data_dir: Path) -> None:
    """Delete all tokens."""
    shutil.rmtree(data_dir / _FOLDER, ignore_errors=True)


def _file(data_dir: Path, token: str) -> Path:
    return data_dir / _FOLDER / hash_token(token).hex()
