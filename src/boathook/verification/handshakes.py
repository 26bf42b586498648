"""Answers handshakes: the challenges that senders send before they send events.

An answer may be a MAC over text of an unauthenticated client, made with the key that signs events. So the whole
challenge text must match the alphabet and length that its recipe allows.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, assert_never

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.json_document import scalar_text
from boathook.domain.redaction import RedactedStruct
from boathook.domain.signing import ENCODERS, HmacKey, decode_key
from boathook.domain.verification import Challenge, Reason, Rejected, Request, SourceSpec
from boathook.providers.recipe import (
    JSON,
    PLAIN_TEXT,
    CaptureSecret,
    ConfirmByFetch,
    Echo,
    Handshake,
    Recipe,
    SignText,
    StaticAnswer,
)
from boathook.providers.request_reader import (
    ExtractedFields,
    FieldExtractor,
    FieldReader,
    Json,
    Selector,
    make_field_reader,
)

MAX_TEXT: Final = 4_096
"""Maximum characters of a challenge text."""
MAX_UNPROVEN_BODY: Final = 4_096
"""Maximum bytes of a body that is parsed before its proof is verified; challenges are far smaller."""
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")

HandshakeResult = Challenge | Rejected
_Write = Callable[[str], Challenge]


class _CompiledHandshake(RedactedStruct, frozen=True):
    hidden_fields: ClassVar[frozenset[str]] = frozenset({"token"})

    method: str
    when: tuple[tuple[FieldReader, str | None], ...]
    unless: tuple[FieldReader, ...]
    token: tuple[FieldReader, str, str] | None
    """Reader of the token, its expected value, and the name of the setting that defines it."""
    answer: Callable[[Request, ExtractedFields], HandshakeResult]

    def matches(self, request: Request, extracted: ExtractedFields) -> bool:
        for read, text in self.when:
            value = read(request, extracted)
            if value is None or value == "":
                return False
            if text is not None and value != text and scalar_text(value) != text:
                return False
        return all(read(request, extracted) in (None, "") for read in self.unless)


class Handshakes:
    """Answers the challenges that one source accepts; compiled once.

    Raises:
        ConfigError: the source's secret is not in the format that answers are signed with.
    """

    methods: frozenset[str]
    """The HTTP methods of the challenges."""

    def __init__(self, recipe: Recipe, spec: SourceSpec, settings: Mapping[str, str]) -> None:
        # A secret is captured only once: a client that has this URL must not be able to replace it later.
        shakes = [
            handshake
            for handshake in recipe.handshakes
            if not (isinstance(handshake.answer, CaptureSecret) and spec.secrets)
        ]
        self.methods = frozenset(handshake.method for handshake in shakes)
        self._unproven = tuple(_compile(handshake, spec, settings) for handshake in shakes if not handshake.is_proven)
        self._proven = tuple(_compile(handshake, spec, settings) for handshake in shakes if handshake.is_proven)
        self.paths = tuple(_json_paths(handshake for handshake in shakes if handshake.is_proven))
        """JSON paths that `answer_proven` needs extracted."""
        self._extractor = FieldExtractor(_json_paths(handshake for handshake in shakes if not handshake.is_proven))
        secrets = [shake.answer.selector for shake in recipe.handshakes if isinstance(shake.answer, CaptureSecret)]
        self._secret_fields = tuple(map(make_field_reader, secrets))
        self._secret_extractor = FieldExtractor(selector.path for selector in secrets if isinstance(selector, Json))
        self.any_unproven = bool(self._unproven)
        self.any_proven = bool(self._proven)

    def answer_unproven(self, request: Request) -> HandshakeResult | None:
        """Return the answer to a challenge sent without proof, or None if the request is no such challenge."""
        if len(request.body) > MAX_UNPROVEN_BODY:
            return None
        extracted: ExtractedFields | None = None
        for question in self._unproven:
            if question.method == request.method:
                if extracted is None:
                    extracted = self._pick(request.body)
                if question.matches(request, extracted):
                    return _reply(question, request, extracted)
        return None

    def answer_proven(self, request: Request, extracted: ExtractedFields) -> HandshakeResult | None:
        """Return the answer to a challenge in a verified request, or None if the request is none."""
        for question in self._proven:
            if question.method == request.method and question.matches(request, extracted):
                return _reply(question, request, extracted)
        return None

    def carries_secret(self, request: Request) -> bool:
        """Return whether a request hands over a secret, as this sender does in a handshake, at whatever time."""
        if not self._secret_fields or len(request.body) > MAX_UNPROVEN_BODY:
            return False
        extracted = self._secret_extractor.extract(request.body) or {}
        return any(read(request, extracted) not in (None, "") for read in self._secret_fields)

    def _pick(self, body: bytes) -> ExtractedFields:
        return (self._extractor.extract(body) or {}) if self._extractor.paths else {}


def handshake_selectors(handshake: Handshake) -> Iterator[Selector]:
    """Yield every selector that a handshake reads."""
    yield from (condition[0] if isinstance(condition, tuple) else condition for condition in handshake.when)
    yield from handshake.unless
    if handshake.token is not None:
        yield handshake.token[0]
    if not isinstance(handshake.answer, StaticAnswer):
        yield handshake.answer.selector


def _json_paths(handshakes: Iterator[Handshake]) -> list[str]:
    return [
        selector.path
        for handshake in handshakes
        for selector in handshake_selectors(handshake)
        if isinstance(selector, Json)
    ]


def _compile(handshake: Handshake, spec: SourceSpec, settings: Mapping[str, str]) -> _CompiledHandshake:
    pairs = (condition if isinstance(condition, tuple) else (condition, None) for condition in handshake.when)
    token = None
    if handshake.token is not None:
        selector, setting = handshake.token
        token = (make_field_reader(selector), settings.get(setting, ""), f"sources.{spec.name}.{setting}")
    return _CompiledHandshake(
        method=handshake.method,
        when=tuple((make_field_reader(selector), text) for selector, text in pairs),
        unless=tuple(map(make_field_reader, handshake.unless)),
        token=token,
        answer=_compile_answer(handshake, spec, settings),
    )


def _reply(question: _CompiledHandshake, request: Request, extracted: ExtractedFields) -> HandshakeResult:
    if question.token is not None:
        read, expected, setting = question.token
        if not expected:
            return _refuse(401, f"{setting} is not set, so no token can be valid")
        sent_text = scalar_text(read(request, extracted)) or ""
        prints = (signing.fingerprint(text.encode("utf-8", "surrogatepass")) for text in (sent_text, expected))
        if not signing.equal_bytes_constant_time(*prints):
            return _refuse(401, f"its token is not {setting}")
    return question.answer(request, extracted)


def _compile_answer(
    handshake: Handshake, spec: SourceSpec, settings: Mapping[str, str]
) -> Callable[[Request, ExtractedFields], HandshakeResult]:
    status = handshake.status
    match handshake.answer:
        case Echo(selector=selector, wrap=wrap, allowed=allowed):
            return _answer_text(selector, allowed, lambda text: _echo(status, wrap, text))
        case StaticAnswer() as say:
            return _static_answer(status, say, spec, settings)
        case SignText() as sign:
            return _sign(status, sign, spec, settings)
        case ConfirmByFetch(selector=selector, pattern=pattern):
            return _answer_text(selector, pattern, lambda text: _done(status, visit=text))
        case CaptureSecret(selector=selector, allowed=allowed):
            return _answer_text(selector, allowed, lambda text: _done(status, capture=text))
        case _ as never:
            assert_never(never)


def _answer_text(
    selector: Selector, allowed: re.Pattern[str], write: _Write
) -> Callable[[Request, ExtractedFields], HandshakeResult]:
    read = make_field_reader(selector)

    def answer(request: Request, extracted: ExtractedFields) -> HandshakeResult:
        text = read(request, extracted)
        if not isinstance(text, str):
            return _refuse(400, "it contains no challenge text")
        if len(text) > MAX_TEXT or allowed.fullmatch(text) is None:
            return _refuse(400, "its challenge text is not in this sender's format, so it was not answered")
        return write(text)

    return answer


def _echo(status: int, wrap: str, text: str) -> Challenge:
    if wrap:
        return Challenge(status=status, body=json.dumps({wrap: text}).encode(), content_type=JSON)
    return Challenge(status=status, body=text.encode("utf-8", "replace"), content_type=PLAIN_TEXT)


def _done(status: int, **texts: str) -> Challenge:
    return Challenge(status=status, body=b"", content_type=PLAIN_TEXT, **texts)


def _static_answer(
    status: int, say: StaticAnswer, spec: SourceSpec, settings: Mapping[str, str]
) -> Callable[[Request, ExtractedFields], HandshakeResult]:
    body = settings.get(say.setting, "") if say.setting else say.body
    if say.setting and not body:
        refusal = _refuse(400, f"sources.{spec.name}.{say.setting} is not set; set it to the text of the reply")
        return lambda _request, _picked: refusal
    answer = Challenge(status=status, body=body.encode(), content_type=say.content_type)
    return lambda _request, _picked: answer


def _sign(
    status: int, sign: SignText, spec: SourceSpec, settings: Mapping[str, str]
) -> Callable[[Request, ExtractedFields], HandshakeResult]:
    if not spec.secrets:
        refusal = _refuse(400, f"sources.{spec.name}.secrets is empty, and the reply is signed with the first secret")
        return lambda _request, _picked: refusal
    try:
        mac = HmacKey(decode_key(spec.secrets[0], sign.key_form), sign.algorithm)
    except ValueError as error:
        raise ConfigError(f"sources.{spec.name}.secrets[0]: {error} for provider {spec.provider}") from None

    def write(text: str) -> Challenge:
        words = {
            **settings,
            "text": text,
            "mac": ENCODERS[sign.encoding](mac.digest((text.encode("utf-8", "replace"),))),
        }
        body = _fill(sign.template, words, is_json=sign.content_type == JSON)
        return Challenge(status=status, body=body.encode("utf-8", "replace"), content_type=sign.content_type)

    return _answer_text(sign.selector, sign.allowed, write)


def _fill(template: str, words: Mapping[str, Any], *, is_json: bool) -> str:
    def word(hole: re.Match[str]) -> str:
        text = words.get(hole[1])
        if text is None:
            return hole[0]
        return json.dumps(text)[1:-1] if is_json else str(text)

    return _PLACEHOLDER.sub(word, template)


def _refuse(status: int, reason: str) -> Rejected:
    return Rejected(
        status=status, reason=Reason.CHALLENGE_REFUSED, detail=f"a handshake was refused: {reason}", may_reverify=False
    )
