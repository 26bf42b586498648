"""Settings for display: secrets are shown only as references."""

from typing import Any

from boathook.config import Settings
from boathook.config.sources import FIELDS
from boathook.domain.errors import ConfigError


def all_settings(settings: Settings) -> dict[str, Any]:
    """Return every setting as plain values; secrets only as the references in the settings."""
    plain = settings.model_dump(mode="json", exclude={"file", "extra"})
    plain["database"]["url"] = without_password(settings.database.url)
    outbound = plain["outbound"]
    outbound["proxy"] = without_password(outbound["proxy"])
    outbound["encryption_keys"] = [reference(key) for key in outbound["encryption_keys"]]
    client = plain["console"]
    client["oidc_client_secret"] = client["oidc_client_secret"] and reference(client["oidc_client_secret"])
    client["portal_logo"] = _shortened(client["portal_logo"])
    for channel in plain["notifications"]["channels"].values():
        for key in {"token", "url", "secret", "password"} & channel.keys():
            channel[key] = channel[key] and reference(channel[key])
    plain["tracing"]["headers"] = {name: reference(value) for name, value in plain["tracing"]["headers"].items()}
    for source in plain["sources"].values():
        source["secrets"] = [reference(secret) for secret in source["secrets"]]
        source["password"] = source["password"] and reference(source["password"])
        for key in source.keys() - FIELDS.keys() - _open_settings(source["provider"]):
            source[key] = reference(source[key])
    return plain


def _shortened(path: str) -> str:
    """Return a path, or the beginning of a data URL."""
    head, comma, data = path.partition(",")
    return f"{head},({len(data):,} characters)" if comma and head.startswith("data:") else path


def _open_settings(provider: str) -> set[str]:
    """Return the names of a provider's own settings that are not secret."""
    from boathook.providers import find_recipe

    try:
        return {setting.name for setting in find_recipe(provider).settings if not setting.is_secret}
    except ConfigError:
        return set()


def reference(secret: object) -> str:
    """Return the reference of a secret, such as ``env:NAME``; hide a secret that is written out."""
    return secret if isinstance(secret, str) and secret.startswith(("env:", "file:")) else "(hidden)"


def without_password(url: str) -> str:
    """Return a URL for display, without its password."""
    scheme, slashes, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{slashes}{user.partition(':')[0]}:(hidden)@{host}" if at and ":" in user else url
