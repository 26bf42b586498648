"""What to try next: lines for a shell that work as they are printed."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from boathook.demo.folder import Folder
from boathook.testing import sign

_ISSUE = {"id": 1, "number": 1, "title": "Hello from a shell", "state": "open", "updated_at": "2026-01-01T00:00:00Z"}
_GITHUB = {"action": "opened", "issue": _ISSUE}
_DELIVERY = "4c8f1d52-7a3b-4e7e-9a53-0d7a3d2f1b60"
_STRIPE = {"id": "evt_hello_from_a_shell", "type": "payment_intent.succeeded", "data": {"object": {"amount": 4200}}}


def write(folder: Folder, port: int, secret: str, *, is_serving: bool) -> Iterator[str]:
    """Return the lines to print; *secret* is that of the source github."""
    program = _program()
    command = f"{program} --config {_relative(folder.configuration)}"
    if is_serving:
        yield "# What to try next, in another terminal. This boathook goes on serving until Ctrl-C."
    else:
        yield "# What to try next. boathook has stopped; this starts it again on the same data, until Ctrl-C:"
        yield f"{command} serve"
        yield ""
        yield "# Then, in another terminal:"
    yield "# an event as GitHub signs it, over the body alone, so the line works for ever; again, it is a duplicate"
    yield _github(port, secret)
    yield "# one as Stripe signs it, over the time and the body"
    yield _stripe(port, folder.secret_file("stripe"))
    yield ""
    yield "# What there is, and what is to be decided:"
    yield f"{command} events list --limit 5"
    yield f"{command} dead list --limit 5"
    yield f"{command} dead replay --all --yes"
    yield f"{command} rejections list --limit 5"
    yield f"{command} check"
    yield ""
    yield "# The four systems: who has paid, which cars there are, which songs were made"
    yield f"{command} billing subscriptions --json"
    yield f"{command} fleet cars"
    yield f"{command} music tracks list"
    yield f"# the cash registers' cabinet is http://127.0.0.1:{port}/cabinet/ and asks for the token that this prints"
    yield f"{command} cashdesk users add 'Tea & Co'"


def _github(port: int, secret: str) -> str:
    body = json.dumps(_GITHUB)
    headers = sign("github", secret, body.encode(), id=_DELIVERY) | {"x-github-event": "issues"}
    options = " ".join(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items())
    return f"curl -sS http://127.0.0.1:{port}/in/github {options} -d {shlex.quote(body)}; echo"


def _stripe(port: int, secret: Path) -> str:
    body = json.dumps(_STRIPE)
    return (
        f"body={shlex.quote(body)}; t=$(date +%s); "
        f'v1=$(printf \'%s.%s\' "$t" "$body" | openssl dgst -sha256 -hmac "$(cat {_relative(secret)})" '
        "| sed 's/.* //'); "
        f"curl -sS http://127.0.0.1:{port}/in/stripe -H 'content-type: application/json' "
        '-H "stripe-signature: t=$t,v1=$v1" -d "$body"; echo'
    )


def _relative(path: Path) -> str:
    """Write *path* for a shell, from the working folder where it lies below."""
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def _program() -> str:
    """Return how this boathook is called from the shell it was started in."""
    script = Path(sys.executable).parent / "boathook"
    found = shutil.which("boathook")
    if found is not None and Path(found).absolute() == script:
        return "boathook"
    return _relative(script) if script.exists() else f"{shlex.quote(sys.executable)} -m boathook"
