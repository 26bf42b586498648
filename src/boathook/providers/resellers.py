"""Recipes of car rental systems and resellers of music generation."""

from typing import Final

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Encoding
from boathook.providers.generic import HMAC_SETTINGS, TOKEN_SETTINGS, configure_default_token, configure_hmac
from boathook.providers.recipe import BodyFormat, Confidence, EventId, EventType, Recipe, Sample
from boathook.providers.request_reader import Header, Json, Query, RequestReader
from boathook.providers.schemes import (
    FieldMac,
    Hmac,
    Plain,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    SignedTimestamp,
    Token,
)

_SUNO_TASKS: Final = (Json("data.task_id"), Json("data.taskId"), Json("task_id"), Json("taskId"))
"""Song callbacks use ``task_id``; those of voices and of the market's other models use ``taskId``."""
_SUNO_STAGES: Final = (
    Json("data.callbackType"),
    Json("data.stage"),
    Json("data.status"),
    Json("data.state"),
    # Of proxies that forward the task and its stage without an envelope.
    Json("callbackType"),
    Json("stage"),
    Json("status"),
)
_SUNO_DELIVERIES: Final = (Header("x-delivery-id"), Header("x-webhook-id"))
_SUNO_ID: Final = EventId(
    selectors=(*_SUNO_DELIVERIES, *((task, stage) for task in _SUNO_TASKS for stage in _SUNO_STAGES)),
    form="suno:{}:{}",
    is_signed=False,
)


def _suno_state(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes: task id and timestamp, as in https://docs.kie.ai/common-api/webhook-verification.

    Of the body, only the task's id is covered.
    """
    task = next((text for text in map(reader.text, _SUNO_TASKS) if text), None)
    if task is None:
        return "the body contains no task id, and the signature covers it"
    timestamp = reader.text(Header("x-webhook-timestamp")) or ""
    return (SignedPart(Header("x-webhook-signature"), f"{task}.{timestamp}".encode("utf-8", "surrogatepass")),)


_SUNO_BY_FIELDS: Final = Recipe(
    name="suno",
    aliases=("kie", "sunoapi"),
    title="Suno by kie.ai and sunoapi.org",
    docs="https://docs.kie.ai/common-api/webhook-verification",
    grade=ProofStrength.METADATA,
    proof=FieldMac(
        read_signed_parts=_suno_state,
        encoding=Encoding.BASE64,
        # It is not documented whether a retry is signed again, so the window is longer than the retry period.
        timestamp=SignedTimestamp(selector=Header("x-webhook-timestamp"), tolerance_s=1_800.0),
        proof_headers=("x-webhook-signature",),
    ),
    sample=Sample(
        body=b'{"code":200,"msg":"All generated successfully.","data":{"callbackType":"complete",'
        b'"task_id":"boathook-sample","data":[{"id":"e231","audio_url":"https://example.com/a.mp3","duration":198.44}]}}',
    ),
    id=_SUNO_ID,
    type=EventType(selectors=_SUNO_STAGES),
    answer_within_s=15.0,
    retries="after 1, 5 and 15 minutes",
    retries_for_days=0.02,
    checked=("requests built by hand from its documentation",),
    setup=(
        "Pass {url} as callBackUrl of each request to kie.ai or sunoapi.org.",
        "In the reseller's settings create a webhook HMAC key and put it into the source's secrets.",
        "The signature covers the task's id and the timestamp, not the body: fetch the result from its API.",
    ),
)

_SUNO: Final = replace(
    _SUNO_BY_FIELDS,
    # For a proxy between such a reseller and boathook that uses its own proof.
    schemes={
        "hmac": replace(
            _SUNO_BY_FIELDS,
            grade=ProofStrength.BODY,
            proof=Hmac(headers=(SignatureHeaders(signature="x-signature"),)),
            settings=HMAC_SETTINGS,
            configure=configure_hmac,
        ),
        "token": replace(
            _SUNO_BY_FIELDS,
            grade=ProofStrength.TOKEN,
            proof=Token(selector=Query("token")),
            settings=TOKEN_SETTINGS,
            configure=configure_default_token,
        ),
    },
)

_SUNO_MUSICAPI: Final = Recipe(
    name="suno-musicapi",
    aliases=("musicapi",),
    title="Suno by musicapi.ai",
    docs="https://docs.musicapi.ai/webhook-guide",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="x-webhook-signature", timestamp="x-webhook-timestamp"),),
        form=Plain("sha256="),
        template="{timestamp}.{body}",
    ),
    sample=Sample(
        body=b'{"code":200,"data":[{"clip_id":"30264033-2b01-43a7-8779-2a834b067486","state":"succeeded",'
        b'"title":"Sample","audio_url":"https://example.com/a.mp3","duration":"104.88"}]}',
        headers={"x-webhook-id": "boathook-sample", "x-webhook-event": "song.completed"},
    ),
    id=_SUNO_ID,
    type=EventType(selectors=(Header("x-webhook-event"),)),
    retries="3 times",
    checked=("requests built by hand from its documentation",),
    confidence={"retries": Confidence.MEMORY},
    setup=(
        "In musicapi.ai's settings enter {url} as webhook URL, or pass it with each request.",
        "Copy the webhook secret into the source's secrets.",
    ),
)

_SUNO_SUNOAPI: Final = Recipe(
    name="suno-sunoapi",
    title="Suno by sunoapi.com",
    docs="https://docs.sunoapi.com/webhook-guide",
    grade=ProofStrength.BODY,
    # It is not documented whether the MAC is written in hexadecimal.
    proof=Hmac(headers=(SignatureHeaders(signature="x-signature"),)),
    sample=Sample(
        body=b'{"code":200,"data":[{"clip_id":"boathook-sample","state":"succeeded","title":"Sample",'
        b'"audio_url":"https://example.com/a.mp3","duration":"104.88"}]}'
    ),
    # The documentation says to identify events by task and platform, but not where these are. Without a header, the
    # hash of the body is the key.
    id=_SUNO_ID,
    type=EventType(selectors=(Json("data.0.state"),)),
    retries="3 times",
    checked=("requests built by hand from its documentation",),
    confidence={"proof": Confidence.SECONDARY, "retries": Confidence.MEMORY},
    setup=(
        "Pass {url} as callback URL of each request to sunoapi.com.",
        "Copy the webhook secret from your account into the source's secrets.",
    ),
)


def _preset(name: str, title: str, docs: str, sample: Sample, type: EventType, setup: tuple[str, ...]) -> Recipe:
    """Return the recipe of a sender that does not document its proof; the settings define it.

    By default, a token is expected in the URL, because every system lets its users choose the URL. There is no reliable
    event id either: the hash of the body is the key unless the settings name an id.
    """
    by_token = Recipe(
        name=name,
        title=title,
        docs=docs,
        grade=ProofStrength.TOKEN,
        proof=Token(selector=Query("token")),
        sample=sample,
        type=type,
        body=BodyFormat.JSON,
        settings=TOKEN_SETTINGS,
        configure=configure_default_token,
        checked=("requests built by hand",),
        setup=setup,
        is_secret_chosen=True,
        confidence=dict.fromkeys(("docs", "proof", "type", "sample", "retries"), Confidence.MEMORY),
    )
    by_mac = replace(
        by_token,
        grade=ProofStrength.BODY,
        proof=Hmac(headers=(SignatureHeaders(signature="x-signature"),)),
        settings=HMAC_SETTINGS,
        configure=configure_hmac,
    )
    return replace(by_token, schemes={"hmac": by_mac})


RECIPES = (
    _SUNO,
    _SUNO_MUSICAPI,
    _SUNO_SUNOAPI,
    _preset(
        "rentprog",
        "RentProg",
        "https://rentprog.com",
        Sample(
            body=b'{"event":"booking_update","payload":"{\\"id\\"=>\\"boathook-sample\\", \\"total\\"=>[310.0, 295.5], '
            b'\\"company_id\\"=>4310}"}'
        ),
        # `event` is what RentProg sends; the others are for systems between it and boathook.
        EventType(
            selectors=(Json("event"), Json("type"), (Json("entity"), Json("action")), (Json("model"), Json("action")))
        ),
        (
            "In RentProg's integration settings enter {url} as webhook URL.",
            (
                "Choose a long random token. Have RentProg send it in a header and set header of the source to its "
                "name, or append it to the URL as a parameter and set query to the parameter's name."
            ),
            "Put the same token into the source's secrets.",
        ),
    ),
    _preset(
        "umnico",
        "Umnico",
        "https://umnico.com",
        Sample(
            body=b'{"type":"message.incoming","accountId":1,"leadId":2,"message":{"messageId":"boathook-sample",'
            b'"datetime":1763700000000,"message":{"text":"hello"}}}'
        ),
        EventType(selectors=(Json("type"), Json("event"))),
        (
            "In Umnico open Settings, API, and enter {url} as webhook URL.",
            "Choose a long random token, append it to the URL as a parameter, and set query to the parameter's name.",
            "Put the same token into the source's secrets.",
        ),
    ),
)
