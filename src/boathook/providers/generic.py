"""Recipes completed by the user in boathook.toml: any HMAC, a static token, or no proof."""

from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.replies import check_media_type
from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.providers.options import Options
from boathook.providers.recipe import JSON, BodyFormat, EventId, EventType, ExpectedReply, Recipe, Sample, Setting
from boathook.providers.request_reader import BasicPassword, Header, Query
from boathook.providers.schemes import Hmac, NoProof, Plain, SignatureHeaders, TimestampFormat, Token, fields_of

DOCS: Final = "https://github.com/boathook/boathook/blob/main/docs/reference/configuration.md"


class KeyEncoding(StrEnum):
    """The encoding of a generic source's secret."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


ID_AND_TYPE_SETTINGS: Final = (
    Setting(name="id_header", help="Header with the event id"),
    Setting(name="id_path", help="Path of the event id in a JSON body, such as data.id"),
    Setting(name="type_header", help="Header with the event type"),
    Setting(name="type_path", help="Path of the event type in a JSON body"),
    Setting(name="reply_status", help="Status the sender expects for an accepted request, 200 to 299"),
    Setting(name="reply_body", help="Text the sender expects for an accepted request, such as OK"),
    Setting(name="reply_content_type", help="Content type of reply_body"),
)
HMAC_SETTINGS: Final = (
    Setting(name="header", help="Header with the signature; default: X-Signature"),
    Setting(name="prefix", help="Prefix of the signature, such as sha256="),
    Setting(name="algorithm", help="Hash of the HMAC: sha1, sha256 (the default), sha384 or sha512"),
    Setting(name="encoding", help="Encoding of the signature: hex (the default) or base64"),
    Setting(name="key_encoding", help="Encoding of the secret: text (the default), hex or base64"),
    Setting(name="template", help="The signed bytes, from {body} {timestamp} {id} {url} {path} {method} and text"),
    Setting(name="timestamp_header", help="Header with the signed timestamp"),
    Setting(name="timestamp_unit", help="Format of the timestamp: s (the default), ms or iso"),
    *ID_AND_TYPE_SETTINGS,
)
TOKEN_SETTINGS: Final = (
    Setting(name="header", help="Header with the token; default: Authorization"),
    Setting(name="prefix", help="Prefix of the token in its header, such as Bearer and a space"),
    Setting(name="query", help="Query parameter with the token"),
    Setting(name="username", help="User name of HTTP Basic authentication, whose password is the token"),
    Setting(name="password", help="The password, instead of secrets", is_secret=True),
    *ID_AND_TYPE_SETTINGS,
)


def configure_hmac(options: Options, base: Recipe) -> Recipe:
    """Return the recipe of one source from its settings.

    Raises:
        ConfigError: a setting is missing, conflicts with another, or is invalid.
    """
    assert isinstance(base.proof, Hmac)
    header = options.header("header", base.proof.headers[0].signature)
    assert header is not None
    timestamp, id_header = options.header("timestamp_header"), options.header("id_header")
    proof = Hmac(
        headers=(
            SignatureHeaders(
                signature=header.name,
                timestamp=timestamp.name if timestamp else None,
                id=id_header.name if id_header else None,
            ),
        ),
        form=Plain(options.text("prefix")),
        template=options.text("template", "{timestamp}.{body}" if timestamp else "{body}"),
        algorithm=options.choice("algorithm", Algorithm.SHA256),
        encoding=options.choice("encoding", Encoding.HEX),
        key_form=KeyFormat(options.choice("key_encoding", KeyEncoding.TEXT).value),
        time_unit=options.choice("timestamp_unit", TimestampFormat.SECONDS),
    )
    signed = _check_template(options, proof)
    recipe = configure_id_and_type(options, base)
    selector = recipe.id.selectors[0] if recipe.id.selectors else None
    is_signed = not isinstance(selector, Header) or "id" in signed
    return replace(recipe, proof=proof, id=replace(recipe.id, is_signed=is_signed))


def _check_template(options: Options, proof: Hmac) -> frozenset[str]:
    try:
        fields = fields_of(proof.template)
    except ValueError as error:
        raise options.error("template", str(error)) from None
    if "body" not in fields:
        raise options.error("template", "{body} is missing, so the signature would not cover the body; add it")
    for field, value, key in (
        ("timestamp", proof.headers[0].timestamp, "timestamp_header"),
        ("id", proof.headers[0].id, "id_header"),
    ):
        if field in fields and not value:
            raise options.error(key, f"the template includes {{{field}}}; set this to the header that contains it")
    if proof.headers[0].timestamp and "timestamp" not in fields:
        raise options.error(
            "template",
            "timestamp_header is set, but the template does not include it; add {timestamp} to the template",
        )
    if proof.time_unit is not TimestampFormat.SECONDS and not proof.headers[0].timestamp:
        raise options.error("timestamp_unit", "timestamp_header is not set; set it, or remove this")
    return fields


def configure_token(options: Options, base: Recipe) -> Recipe:
    """Return the recipe of one source from its settings.

    Raises:
        ConfigError: the settings do not name exactly one location of the token.
    """
    return replace(configure_id_and_type(options, base), proof=_token(options, None))


def configure_default_token(options: Options, base: Recipe) -> Recipe:
    """Return the recipe of one source whose token is where the recipe says, unless the settings override it.

    Raises:
        ConfigError: the settings name several locations.
    """
    assert isinstance(base.proof, Token)
    return replace(configure_id_and_type(options, base), proof=_token(options, base.proof))


def _token(options: Options, usual: Token | None) -> Token:
    header, query, username = options.header("header"), options.text("query"), options.text("username")
    options.text("password")
    prefix = options.text("prefix")
    place_count = [bool(header), bool(query), bool(username)].count(True)
    if place_count > 1 or not (place_count or usual):
        raise options.error(
            "header", 'set the location of the token, one of header = "X-Token", query = "token" or username = "..."'
        )
    if prefix and not header:
        raise options.error("prefix", "only a token in a header can have a prefix; remove it")
    if usual and not place_count:
        return usual
    return Token(selector=header or (Query(query) if query else BasicPassword(username)), prefix=prefix)


def configure_id_and_type(options: Options, base: Recipe) -> Recipe:
    """Return the recipe of a source with the locations of id and type, and the reply, from its settings.

    Raises:
        ConfigError: a setting conflicts with another or is invalid.
    """
    event_id, event_type = options.selector("id"), options.selector("type")
    return replace(
        base,
        id=EventId(selectors=(event_id,)) if event_id else base.id,
        type=EventType(selectors=(event_type,)) if event_type else base.type,
        reply=_reply(options) or base.reply,
    )


def _reply(options: Options) -> ExpectedReply | None:
    status = options.number("reply_status", range(200, 300))
    body, content_type = options.text("reply_body"), options.text("reply_content_type")
    if status in {204, 205} and body:
        raise options.error("reply_body", f"a reply with status {status} has no body; remove one of the two")
    if content_type and not body:
        raise options.error("reply_content_type", "reply_body is not set; set it, or remove this")
    if status is None and not body:
        return None
    try:
        # A line break would start another header in every reply.
        check_media_type(content_type or ExpectedReply().content_type)
    except ValueError as error:
        raise options.error("reply_content_type", str(error)) from None
    usual = JSON if body.startswith(("{", "[")) else ExpectedReply().content_type
    return ExpectedReply(body=(body,) if body else (), status=status or 200, content_type=content_type or usual)


_NAMES_STEP: Final = (
    "If events have an id, set id_header or id_path to its location, so that a repeated request is recognized. "
    "Without an id, requests with equal bodies count as the same event."
)
_SAMPLE: Final = b'{"id":"boathook-sample","type":"sample"}'

RECIPES = (
    Recipe(
        name="hmac",
        title="Any sender that signs with an HMAC",
        docs=DOCS,
        grade=ProofStrength.BODY,
        proof=Hmac(headers=(SignatureHeaders(signature="x-signature"),)),
        sample=Sample(body=_SAMPLE),
        body=BodyFormat.ANY,
        methods=frozenset({"POST", "PUT"}),
        settings=HMAC_SETTINGS,
        example_settings={"header": "X-Signature", "algorithm": "sha256", "encoding": "hex", "template": "{body}"},
        configure=configure_hmac,
        checked=("hashlib and hmac of Python, for every algorithm and encoding",),
        setup=(
            "At the sender, enter {url} as the webhook's URL.",
            (
                "Look up in its documentation which header contains the signature and which bytes are signed. Set "
                "header, algorithm, encoding and template of the source accordingly, and prefix if the signature "
                "has one."
            ),
            "Put the shared secret into the source's secrets.",
            _NAMES_STEP,
        ),
        is_secret_chosen=True,
    ),
    Recipe(
        name="token",
        title="Any sender of a static token or HTTP Basic password",
        docs=DOCS,
        grade=ProofStrength.TOKEN,
        proof=Token(selector=Header("authorization")),
        sample=Sample(body=_SAMPLE, settings={"header": "X-Token"}),
        body=BodyFormat.ANY,
        methods=frozenset({"POST", "PUT"}),
        settings=TOKEN_SETTINGS,
        configure=configure_token,
        checked=("requests built by hand",),
        setup=(
            "At the sender, enter {url} as the webhook's URL.",
            (
                "Choose a long random token. Have the sender put it in a header, the Basic password or the URL, "
                "and set header, username or query of the source accordingly."
            ),
            "Put the same token into the source's secrets. It authenticates the sender, but does not protect the body.",
            _NAMES_STEP,
        ),
        is_secret_chosen=True,
    ),
    Recipe(
        name="unsigned",
        title="Any sender, without proof",
        docs=DOCS,
        grade=ProofStrength.NONE,
        proof=NoProof(),
        sample=Sample(body=_SAMPLE),
        body=BodyFormat.ANY,
        methods=frozenset({"POST", "PUT"}),
        settings=ID_AND_TYPE_SETTINGS,
        configure=configure_id_and_type,
        checked=("requests built by hand",),
        setup=(
            "At the sender, enter {url} as the webhook's URL.",
            (
                "Anyone who has the URL can send anything: set unsigned = true, set addresses to the sender's "
                "networks if it publishes them, and let the handler fetch the data from the sender's API."
            ),
            _NAMES_STEP,
        ),
    ),
)
