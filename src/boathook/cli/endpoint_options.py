"""What endpoints can be given on the command line, and how it is read."""

from typing import Annotated, Any

import typer

from boathook.cli.options import read_json, read_pairs
from boathook.cli.session import Misused
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.endpoints import check_uid

Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only messages of this type; * stands for any run of characters.", show_default=False),
]
Channels = Annotated[
    list[str] | None, typer.Option("--channel", help="Only messages of one of these channels.", show_default=False)
]
FilterText = Annotated[
    str | None, typer.Option("--filter", metavar="JSON", help="Only messages whose body fits; @FILE reads a file.")
]
Uid = Annotated[str | None, typer.Option(help="The application's own word for it, to be used in place of the id.")]
Description = Annotated[str | None, typer.Option(help="What people should know about it.")]
Retry = Annotated[
    str | None, typer.Option(metavar="NAME|SECONDS", help="A preset such as svix, or waits such as '5, 60, 3600'.")
]
RateLimit = Annotated[int | None, typer.Option(min=0, max=65_535, help="Most messages a second.")]
Concurrency = Annotated[int | None, typer.Option(min=0, max=32_767, help="Most requests under way at once.")]
Timeout = Annotated[float | None, typer.Option(min=0, max=3_600, help="Seconds one attempt may take.")]
OrderBy = Annotated[
    str | None, typer.Option(metavar="PATH", help="Send those with the same value there one after another; * for all.")
]
Headers = Annotated[
    list[str] | None, typer.Option("--header", metavar="NAME:VALUE", help="Send this along.", show_default=False)
]
Auth = Annotated[
    str | None, typer.Option(metavar="JSON", help="Credentials: basic, oauth2 or mtls; @FILE reads a file.")
]
SecretReference = Annotated[
    str | None,
    typer.Option("--secret", metavar="REFERENCE", help="What signs: env:NAME or file:PATH; made where absent."),
]
Ed25519 = Annotated[bool, typer.Option("--ed25519", help="Make a key pair, whatever outbound.signature_type says.")]
_CLEARED = {"description": "", "metadata": {}}
_AUTH = {
    "basic": ({"username", "password"}, set[str]()),
    "oauth2": ({"tokenUrl", "clientId", "clientSecret"}, {"scope"}),
    "mtls": ({"certificate", "key"}, set[str]()),
}


def read_values(**given: Any) -> dict[str, Any]:
    """Return the values of an endpoint that are given; what is empty or 0 takes its setting away."""
    values = {name: _read_value(name, value) for name, value in given.items() if value is not None and value != []}
    if not values.get("url", "-"):
        raise Misused("--url: write an address such as https://acme.example/hooks")
    return values


def _read_value(name: str, value: Any) -> Any:
    if value in ("", 0, [""]):
        return _CLEARED.get(name)
    match name:
        case "filter":
            return _read_mapping("--filter", value)
        case "auth":
            return _read_auth(value)
        case "metadata":
            return read_pairs("--metadata", value, "=")
        case "uid":
            return _read_uid(value)
        case _:
            return value


def _read_uid(uid: str) -> str:
    try:
        return check_uid(uid, ids.ENDPOINT)
    except ValueError as error:
        raise Misused(f"--uid: {error}") from None


def _read_mapping(option: str, text: str) -> dict[str, Any]:
    found = read_json(option, text)
    if not isinstance(found, dict):
        raise Misused(f"{option}: write a JSON object, not {text!r}")
    return found


def _read_auth(text: str) -> dict[str, Any]:
    auth = _read_mapping("--auth", text)
    for kind, value in auth.items():
        if kind not in _AUTH:
            raise Misused(f"--auth: write any of {', '.join(_AUTH)}, not {kind!r}")
        needed, possible = _AUTH[kind]
        if not isinstance(value, dict) or not needed <= value.keys() <= needed | possible:
            raise Misused(f"--auth: {kind} is an object with {', '.join(sorted(needed | possible))}")
        if not all(isinstance(part, str) for part in value.values()):
            raise Misused(f"--auth: the values of {kind} are texts")
    return auth


def read_secret(settings: Settings, secret: str | None, ed25519: bool) -> str | None:
    """Return what shall sign; None lets one be made."""
    from boathook.outbound.signer import make_ed25519_secret

    if secret is not None and ed25519:
        raise Misused("--secret or --ed25519, not both")
    if ed25519:
        return make_ed25519_secret()
    return None if secret is None else settings.resolve(secret, "--secret")
