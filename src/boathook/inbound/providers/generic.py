"""Recipes the owner completes in boathook.toml: any HMAC, a static token, or no proof at all."""

from dataclasses import replace
from enum import StrEnum

from boathook.domain.model import Grade
from boathook.domain.signing import Algorithm, Encoding, KeyForm
from boathook.inbound.places import Basic, Header, Query
from boathook.inbound.providers.forms import Plain
from boathook.inbound.providers.options import Options
from boathook.inbound.providers.proofs import Hmac, NoProof, SignedHeaders, TimeUnit, Token
from boathook.inbound.providers.recipe import BodyForm, EventId, EventType, Recipe, Sample
from boathook.inbound.template import fields_of

DOCS = "https://github.com/boathook/boathook/blob/main/docs/configuration.md"


class KeyEncoding(StrEnum):
    """How the secret of a generic source is written."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


def configure_hmac(options: Options, base: Recipe) -> Recipe:
    """Make the recipe of one source from its settings.

    Raises:
        ConfigError: a setting is missing, contradicts another, or has an impossible value.
    """
    assert isinstance(base.proof, Hmac)
    header = options.header("header", base.proof.headers[0].signature)
    assert header is not None
    stamp, id_header = options.header("timestamp_header"), options.header("id_header")
    proof = Hmac(
        headers=(
            SignedHeaders(
                signature=header.name,
                timestamp=stamp.name if stamp else None,
                id=id_header.name if id_header else None,
            ),
        ),
        form=Plain(options.text("prefix")),
        template=options.text("template", "{timestamp}.{body}" if stamp else "{body}"),
        algorithm=options.choice("algorithm", Algorithm.SHA256),
        encoding=options.choice("encoding", Encoding.HEX),
        key_form=KeyForm(options.choice("key_encoding", KeyEncoding.TEXT).value),
        time_unit=options.choice("timestamp_unit", TimeUnit.SECONDS),
    )
    signed = _check_template(options, proof)
    named = _with_names(options, base)
    place = named.id.places[0] if named.id.places else None
    is_signed = not isinstance(place, Header) or "id" in signed
    return replace(named, proof=proof, id=replace(named.id, is_signed=is_signed))


def _check_template(options: Options, proof: Hmac) -> frozenset[str]:
    try:
        fields = fields_of(proof.template)
    except ValueError as error:
        raise options.error("template", str(error)) from None
    if "body" not in fields:
        raise options.error("template", "{body} is missing, so the signature would not cover what is sent; add it")
    for field, value, key in (
        ("timestamp", proof.headers[0].timestamp, "timestamp_header"),
        ("id", proof.headers[0].id, "id_header"),
    ):
        if field in fields and not value:
            raise options.error(key, f"the template signs {{{field}}}; name the header that holds it")
    if proof.headers[0].timestamp and "timestamp" not in fields:
        raise options.error(
            "template",
            "timestamp_header is set but not signed, so it proves nothing; put {timestamp} into the template",
        )
    return fields


def configure_token(options: Options, base: Recipe) -> Recipe:
    """Make the recipe of one source from its settings.

    Raises:
        ConfigError: it does not say in exactly one way where the token stands.
    """
    header, query, username = options.header("header"), options.text("query"), options.text("username")
    options.text("password")
    if [bool(header), bool(query), bool(username)].count(True) != 1:
        raise options.error(
            "header", 'write where the token stands, one of header = "X-Token", query = "token" or username = "..."'
        )
    prefix = options.text("prefix")
    if prefix and not header:
        raise options.error("prefix", "only a token in a header has a prefix; remove it")
    place = header or (Query(query) if query else Basic(username))
    return replace(_with_names(options, base), proof=Token(place=place, prefix=prefix))


def configure_names(options: Options, base: Recipe) -> Recipe:
    """Make the recipe of a source whose settings only say where id and type stand."""
    return _with_names(options, base)


def _with_names(options: Options, base: Recipe) -> Recipe:
    event_id, event_type = options.place("id"), options.place("type")
    return replace(
        base,
        id=EventId(places=(event_id,) if event_id else ()),
        type=EventType(places=(event_type,) if event_type else ()),
    )


RECIPES = (
    Recipe(
        name="hmac",
        title="Any sender that signs with an HMAC",
        docs=DOCS,
        grade=Grade.BODY,
        proof=Hmac(headers=(SignedHeaders(signature="x-signature"),)),
        sample=Sample(body=b'{"id":"boathook-sample","type":"sample"}'),
        body=BodyForm.ANY,
        methods=frozenset({"POST", "PUT"}),
        configure=configure_hmac,
    ),
    Recipe(
        name="token",
        title="Any sender of a static token or HTTP Basic password",
        docs=DOCS,
        grade=Grade.TOKEN,
        proof=Token(place=Header("authorization")),
        sample=Sample(body=b'{"id":"boathook-sample","type":"sample"}', settings={"header": "X-Token"}),
        body=BodyForm.ANY,
        methods=frozenset({"POST", "PUT"}),
        configure=configure_token,
    ),
    Recipe(
        name="unsigned",
        title="Any sender, without proof",
        docs=DOCS,
        grade=Grade.NONE,
        proof=NoProof(),
        sample=Sample(body=b'{"id":"boathook-sample","type":"sample"}'),
        body=BodyForm.ANY,
        methods=frozenset({"POST", "PUT"}),
        configure=configure_names,
    ),
)
