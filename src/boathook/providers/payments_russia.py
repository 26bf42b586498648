"""Recipes of Russian payment providers."""

from typing import Final

from msgspec.structs import replace

from boathook.domain.json_document import scalar_text
from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm, Encoding
from boathook.providers.options import Options
from boathook.providers.recipe import (
    JSON,
    BodyFormat,
    Confidence,
    EventId,
    EventType,
    ExpectedReply,
    Handshake,
    Recipe,
    Sample,
    Setting,
    StaticAnswer,
)
from boathook.providers.request_reader import Form, Header, Json, Query, RequestReader
from boathook.providers.schemes import (
    Addresses,
    FieldMac,
    Hmac,
    ReadSignedParts,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    Token,
)

FORM: Final = "application/x-www-form-urlencoded"

YOOKASSA: Final = Recipe(
    name="yookassa",
    title="YooKassa",
    docs="https://yookassa.ru/developers/using-api/webhooks",
    aliases=("yoomoney",),
    grade=ProofStrength.ADDRESS,
    # Nothing is signed; the provider advises to fetch the object again before acting on it.
    proof=Addresses(
        networks=(
            "77.75.153.0/25",
            "77.75.156.11/32",
            "77.75.156.35/32",
            "77.75.154.128/25",
            "185.71.76.0/27",
            "185.71.77.0/27",
            "2a02:5180::/32",
        )
    ),
    sample=Sample(
        body=b'{"type":"notification","event":"payment.succeeded","object":{"id":"boathook-sample","status":"succeeded",'
        b'"amount":{"value":"10.99","currency":"RUB"},"paid":true,"created_at":"2026-11-21T10:00:00.000Z"}}'
    ),
    id=EventId(selectors=((Json("object.id"), Json("event")),)),
    type=EventType(selectors=(Json("event"),)),
    retries="for 24 hours",
    retries_for_days=1.0,
    checked=("the networks of yookassa (Python)",),
    setup=(
        "In YooKassa's account open Integration, then HTTP notifications.",
        "Enter {url} and choose the events, such as payment.succeeded and refund.succeeded.",
        (
            "There is no signature: boathook accepts requests from YooKassa's networks only, so behind a proxy "
            "set server.trusted_proxies. Let the handler fetch the payment from YooKassa's API before it acts "
            "on it."
        ),
    ),
)


def _state_query(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes of a GET of CloudPayments: the raw query, as in the npm package ``cloudpayments``."""
    return (SignedPart(Header("content-hmac"), reader.request.query.encode()),)


_KIND: Final = Query("kind")
"""Each kind of notification has its own URL, and none contains its kind: users append ``?kind=pay`` and so on. The kind
is not signed. Without it, a check and its payment would look the same, so then the whole body is the key."""

_CLOUDPAYMENTS_GET: Final = Recipe(
    name="cloudpayments",
    title="CloudPayments by GET",
    docs="https://developers.cloudpayments.ru/#uvedomleniya",
    grade=ProofStrength.BODY,
    proof=FieldMac(read_signed_parts=_state_query, encoding=Encoding.BASE64, proof_headers=("content-hmac",)),
    sample=Sample(
        body=b"",
        query="TransactionId=1000001&Amount=10.99&Currency=RUB&InvoiceId=boathook-sample&Status=Completed&kind=pay",
        method="GET",
    ),
    # The whole query is signed, including the kind.
    id=EventId(selectors=((_KIND, Query("TransactionId")),)),
    type=EventType(selectors=(_KIND,)),
    body=BodyFormat.ANY,
    methods=frozenset({"GET"}),
    reply=ExpectedReply(body=('{"code":0}',), content_type=JSON),
    answer_within_s=30.0,
    retries="up to 100 times in about 3 days",
    retries_for_days=4.0,
    checked=("cloudpayments (npm), both ways",),
    confidence={
        "proof": Confidence.SECONDARY,
        "answer_within_s": Confidence.MEMORY,
        "retries": Confidence.MEMORY,
        "retries_for_days": Confidence.MEMORY,
    },
)

CLOUDPAYMENTS: Final = Recipe(
    name="cloudpayments",
    title="CloudPayments",
    docs="https://developers.cloudpayments.ru/#uvedomleniya",
    grade=ProofStrength.BODY,
    # X-Content-HMAC is sent too, over the percent-decoded form; the raw bytes are the better proof.
    proof=Hmac(headers=(SignatureHeaders(signature="content-hmac"),), encoding=Encoding.BASE64),
    sample=Sample(
        body=b"TransactionId=1000001&Amount=10.99&Currency=RUB&PaymentAmount=10.99&PaymentCurrency=RUB"
        b"&DateTime=2026-11-21%2010%3A00%3A00&TestMode=1&Status=Completed&OperationType=Payment"
        b"&InvoiceId=boathook-sample",
        content_type=FORM,
        query="kind=pay",
    ),
    id=EventId(selectors=((_KIND, Form("TransactionId")), (_KIND, Json("TransactionId"))), is_signed=False),
    type=EventType(selectors=(_KIND,)),
    body=BodyFormat.ANY,
    # Zero accepts a payment; a handler that must decline payments replies itself, with mode = "inline".
    reply=ExpectedReply(body=('{"code":0}',), content_type=JSON),
    schemes={"get": _CLOUDPAYMENTS_GET},
    answer_within_s=30.0,
    retries="up to 100 times in about 3 days",
    retries_for_days=4.0,
    checked=("cloudpayments (npm), both ways",),
    confidence={
        "proof": Confidence.SECONDARY,
        "answer_within_s": Confidence.MEMORY,
        "retries": Confidence.MEMORY,
        "retries_for_days": Confidence.MEMORY,
    },
    setup=(
        "In CloudPayments' account open the site's settings, and enable the notifications you need.",
        ("For each, enter {url} with ?kind= and the notification's name, such as {url}?kind=pay, and the method POST."),
        "Copy the site's API Secret into the source's secrets.",
        (
            'The reply to a Check notification decides whether the payment may proceed: use mode = "inline" '
            "for it, and reply with a code of CloudPayments."
        ),
    ),
)


def _state_root_fields(reader: RequestReader, password: str) -> SignedParts | str:
    """Return the hashed bytes of T-Bank: the values of the root's scalar fields and the password, sorted by name.

    https://developer.tbank.ru/eacq/intro/developer/token
    """
    document = reader.document
    if not isinstance(document, dict):
        return "the body is not a JSON object"
    texts = {name: scalar_text(value) for name, value in document.items() if name != "Token"}
    texts["Password"] = password
    signed = "".join(text for _, text in sorted(texts.items()) if text is not None)
    return (SignedPart(Json("Token"), signed.encode()),)


T_BANK: Final = Recipe(
    name="t-bank",
    title="T-Bank (T-Kassa)",
    docs="https://developer.tbank.ru/eacq/intro/developer/notification",
    aliases=("tbank", "t-kassa", "tkassa", "tinkoff"),
    # Data and Receipt are nested, and not signed.
    grade=ProofStrength.METADATA,
    # Values are signed without their names, so one signed text can be split into other fields; it is accepted once.
    proof=FieldMac(read_signed_parts=_state_root_fields, is_keyed=False, is_signed_once=True),
    sample=Sample(
        body=b'{"TerminalKey":"1321054611234DEMO","OrderId":"boathook-sample","Success":true,"Status":"CONFIRMED",'
        b'"PaymentId":8742591,"ErrorCode":"0","Amount":1099,"Pan":"430000******0777","ExpDate":"1228",'
        b'"Data":{"source":"sample"}}'
    ),
    # Partial refunds of one payment share its id and status; the token, a hash of all signed fields, distinguishes
    # them.
    id=EventId(selectors=((Json("PaymentId"), Json("Status"), Json("Token")), Json("Token")), is_signed=False),
    type=EventType(selectors=(Json("Status"), Json("NotificationType"))),
    reply=ExpectedReply(body=("OK",)),
    answer_within_s=10.0,
    retries="hourly for 24 hours, then daily for a month or not at all: the sender documents both",
    retries_for_days=31.0,
    checked=("a vector of its documentation", "requests built by hand from its documentation"),
    setup=(
        "In T-Bank's merchant account open the shop, then Terminals, and edit the terminal.",
        "Enter {url} as the URL of HTTP notifications, or pass it as NotificationURL of each payment.",
        "Put the terminal's password into the source's secrets. Test and live terminals have different passwords.",
    ),
)

_ROBOKASSA_SETTINGS: Final = (
    Setting(
        name="algorithm",
        help="The hash chosen in the shop's technical settings",
        default="md5",
        choices=tuple(algorithm.value for algorithm in Algorithm),
    ),
)


def _state_result(selector: type[Form | Query]) -> ReadSignedParts:
    """Return the reader of signed parts for requests with parameters in a form or in the query.

    https://docs.robokassa.ru/ru/notifications-and-redirects: the sum, the invoice and Password #2, then the shop's own
    parameters sorted by name, all as received.
    """

    def read_signed_parts(reader: RequestReader, password: str) -> SignedParts | str:
        amount, invoice = reader.text(selector("OutSum")), reader.text(selector("InvId"))
        if amount is None or invoice is None:
            return "OutSum or InvId is missing"
        pairs = reader.query if selector is Query else reader.form
        own = sorted(f"{name}={value}" for name, value in pairs if name.lower().startswith("shp_"))
        return (SignedPart(selector("SignatureValue"), ":".join((amount, invoice, password, *own)).encode()),)

    return read_signed_parts


def _choose_algorithm(options: Options, base: Recipe) -> Recipe:
    assert isinstance(base.proof, FieldMac)
    return replace(base, proof=replace(base.proof, algorithm=options.choice("algorithm", base.proof.algorithm)))


_ROBOKASSA_QUERY: Final = (
    "OutSum=10.990000&InvId=1001&Fee=0.300000&EMail=buyer%40example.com&PaymentMethod=BankCard&IncSum=10.990000"
    "&IncCurrLabel=BankCardPSR&Shp_order=boathook-sample"
)
_ROBOKASSA_SURE: Final = {"retries": Confidence.SECONDARY, "proof": Confidence.SECONDARY, "id": Confidence.MEMORY}

_ROBOKASSA_GET: Final = Recipe(
    name="robokassa",
    title="Robokassa by GET",
    docs="https://docs.robokassa.ru/ru/notifications-and-redirects",
    grade=ProofStrength.METADATA,
    proof=FieldMac(
        read_signed_parts=_state_result(Query), is_keyed=False, algorithm=Algorithm.MD5, is_signed_once=True
    ),
    sample=Sample(body=b"", query=_ROBOKASSA_QUERY, method="GET"),
    id=EventId(selectors=((Query("InvId"), Query("SignatureValue")),), is_signed=False),
    body=BodyFormat.ANY,
    methods=frozenset({"GET"}),
    reply=ExpectedReply(body=("OK", Query("InvId"))),
    settings=_ROBOKASSA_SETTINGS,
    configure=_choose_algorithm,
    retries="repeatedly until it gets the expected reply; the schedule is not published",
    checked=("aiorobokassa (Python): it accepts what boathook signs", "requests built by hand from its documentation"),
    confidence=_ROBOKASSA_SURE,
)

ROBOKASSA: Final = Recipe(
    name="robokassa",
    title="Robokassa",
    docs="https://docs.robokassa.ru/ru/notifications-and-redirects",
    grade=ProofStrength.METADATA,
    # A shop has one payment per invoice, which is signed once.
    proof=FieldMac(read_signed_parts=_state_result(Form), is_keyed=False, algorithm=Algorithm.MD5, is_signed_once=True),
    sample=Sample(body=_ROBOKASSA_QUERY.encode(), content_type=FORM),
    # Test payments use the same numbers, and are signed with their own password. By the number alone, the first real
    # payment would look like a copy of a test.
    id=EventId(selectors=((Form("InvId"), Form("SignatureValue")),), is_signed=False),
    body=BodyFormat.ANY,
    reply=ExpectedReply(body=("OK", Form("InvId"))),
    settings=_ROBOKASSA_SETTINGS,
    schemes={"get": _ROBOKASSA_GET},
    configure=_choose_algorithm,
    retries="repeatedly until it gets the expected reply; the schedule is not published",
    checked=("aiorobokassa (Python): it accepts what boathook signs", "requests built by hand from its documentation"),
    confidence=_ROBOKASSA_SURE,
    setup=(
        "In Robokassa's account open the shop's technical settings.",
        'Enter {url} as Result URL, with the method POST; for GET set scheme = "get".',
        (
            "Put Password #2 into the source's secrets; test mode has its own. If the shop uses a hash other "
            "than MD5, set algorithm."
        ),
    ),
)


def _place_key(options: Options, base: Recipe) -> Recipe:
    """Set the location of the API key, which the user chooses."""
    header, field = options.header("header"), options.text("field")
    if header and field:
        raise options.error("field", "header is set too; keep the one that is set in Tilda")
    if not header and not field:
        return base
    return replace(base, proof=Token(selector=header or Form(field)))


TILDA: Final = Recipe(
    name="tilda",
    title="Tilda",
    docs="https://help-ru.tilda.cc/forms/webhook",
    grade=ProofStrength.TOKEN,
    proof=Token(selector=Header("x-api-key")),
    sample=Sample(
        body=b"Name=Sample&Email=sample%40example.com&tranid=1001%3Aboathook-sample&formid=form1001",
        content_type=FORM,
    ),
    # An order is sent first with payment number 0, and again once it is paid. Users choose whether the payment is sent
    # as fields or as JSON in one field.
    id=EventId(
        selectors=(
            (Form("tranid"), Form("payment[systranid]")),
            (Form("tranid"), Form("payment", "systranid")),
            Form("tranid"),
        )
    ),
    type=EventType(selectors=(Form("formid"),)),
    body=BodyFormat.ANY,
    # Sent when the URL is saved, by a request that may lack the key. A visitor's form may contain this field too.
    handshakes=(
        Handshake(
            when=((Form("test"), "test"),),
            unless=(Form("tranid"), Form("formid")),
            is_proven=False,
            answer=StaticAnswer(body="ok"),
        ),
    ),
    reply=ExpectedReply(body=("ok",)),
    settings=(
        Setting(
            name="header", help=("The header in which Tilda sends the API key; default: X-Api-Key, unless field is set")
        ),
        Setting(
            name="field",
            help=("The POST parameter in which Tilda sends the API key; prefer a header, because bodies are stored"),
        ),
    ),
    configure=_place_key,
    answer_within_s=5.0,
    retries="2 more times, 1 minute apart",
    retries_for_days=0.01,
    checked=("requests built by hand from its documentation",),
    confidence={"id": Confidence.SECONDARY, "type": Confidence.SECONDARY, "proof": Confidence.SECONDARY},
    setup=(
        "In Tilda open the site's settings, then Forms, and add a Webhook.",
        (
            "Enter {url}. In its settings enable an API key, choose how it is sent, and set header or field of "
            "the source accordingly."
        ),
        (
            "Choose a long random key, and put the same key into the source's secrets. Then connect the "
            "webhook to the forms and publish the site."
        ),
    ),
    is_secret_chosen=True,
)

RECIPES: Final[tuple[Recipe, ...]] = (YOOKASSA, CLOUDPAYMENTS, T_BANK, ROBOKASSA, TILDA)
