"""The table ``[billing]`` of boathook.toml."""

from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from boathook_pages.languages import LanguageSetting

YOOKASSA: Final = "yookassa"
"""The provider that is stored with YooKassa's payments."""
Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
Path = Annotated[str, StringConstraints(pattern="^/")]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s?#]+$")]
Currency = Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True, min_length=1, max_length=10)]


PaymentSubject = Literal[
    "commodity", "excise", "job", "service", "gambling_bet", "gambling_prize", "lottery", "lottery_prize",
    "intellectual_activity", "payment", "agent_commission", "composite", "another",
]  # fmt: skip
"""YooKassa's names of what is paid for, in the order of the values 1 to 13 of field 1212."""
PaymentMode = Literal[
    "full_prepayment", "partial_prepayment", "advance", "full_payment", "partial_payment", "credit", "credit_payment"
]
"""YooKassa's names of how it is paid, in the order of the values 1 to 7 of field 1214."""
VatCode = Annotated[int, Field(ge=1, le=12)]
"""YooKassa's code of a VAT rate."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("it must be the name of a time zone, such as Europe/Moscow") from None
    return name


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Plan(_Table):
    """A plan for sale."""

    id: Word
    price: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
    """Exact; write it as text, such as "990.00"."""
    currency: Currency | Literal[""] = ""
    """Defaults to `BillingSettings.currency`."""
    days: Annotated[int, Field(gt=0, le=36_500)]
    """Days that one payment adds to the subscription."""
    title: Annotated[Word, Field(max_length=128)] | None = None
    """What receipts say was paid for; defaults to the id."""
    vat_code: VatCode | None = None
    """Defaults to that of [billing.receipts]."""

    @field_validator("price", mode="before")
    @classmethod
    def _exact(cls, value: Any) -> Any:
        # A float such as 0.1 is inexact; its shortest text is what was written.
        return str(value) if isinstance(value, float) else value


class YooKassaSettings(_Table):
    """YooKassa as a second provider: the shop whose payments its notifications are about."""

    shop_id: Word
    secret_key: Word
    """A reference such as ``env:YOOKASSA_SECRET_KEY``: the key with which payments are fetched again."""
    path: Path = "/webhooks/yookassa"
    api_url: HttpUrl = "https://api.yookassa.ru/v3"
    email_key: Word = "email"
    """The key in a payment's metadata with the user's e-mail; YooKassa has no field for it."""
    phone_key: Word = "phone"
    plan_key: Word = "plan_id"


class DunningSettings(_Table):
    """What happens around the end of a subscription's period if no payment comes."""

    grace_days: Annotated[float, Field(ge=0, le=365)] = 0.0
    """How long an active subscription keeps its access after its period."""
    reminder_days: tuple[Annotated[float, Field(ge=-365, le=365)], ...] = ()
    """Days after the end of the period, negative ones before it, at which the owner's endpoints are reminded."""
    application: Word = "billing"
    """The application whose endpoints get the events."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.reminder_days)) < len(self.reminder_days):
            raise ValueError("reminder_days: a day is listed twice")
        if late := [days for days in self.reminder_days if days > 0 and days >= self.grace_days]:
            raise ValueError(
                f"reminder_days: {late[0]:g} is not before the end, after {self.grace_days:g} days; raise grace_days"
            )
        return self


class ReceiptSettings(_Table):
    """The cash desk that issues a receipt for each payment; codes are those of YooKassa's documentation of 54-FZ."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s?#]+/receipts/?$")]
    """Where receipts are requested: of the app cashdesk, or of Dreamkas."""
    token: Word
    """A reference such as ``env:CASHDESK_TOKEN``."""
    device_id: Annotated[int, Field(gt=0)]
    contact: Word
    """E-mail or phone on receipts of payments that have neither."""
    tax_system_code: Annotated[int, Field(ge=1, le=6)]
    vat_code: VatCode = 1
    payment_subject: PaymentSubject = "service"
    payment_mode: PaymentMode = "full_payment"


class BillingSettings(_Table):
    """The sender of payments, its proof, and the plans."""

    provider: Word = "tilda"
    """Stored with each payment; payment ids are unique within it."""
    secret: Word | None = None
    """A reference such as ``env:BILLING_SECRET``: the signing key, or the secret that requests contain."""
    proof: Literal["hmac", "secret"] = "hmac"
    """``hmac``: the header holds the HMAC-SHA256 of the raw body. ``secret``: it holds the secret itself."""
    form: Literal["json", "tilda"] = "json"
    """``json``: the fields listed in PROVIDERS.md. ``tilda``: the form that Tilda itself sends for each order."""
    header: Word = "X-Signature"
    encoding: Literal["hex", "base64"] = "hex"
    path: Path = "/webhooks/payments"
    currency: Currency = "RUB"
    """Of plans and payments without a currency."""
    late_after_hours: Annotated[float, Field(gt=0)] = 24.0
    """A success that is reported later than this after ``paid_at`` is marked late."""
    require_amount: bool = False
    """Whether a success without an amount counts as AMOUNT_MISMATCH; otherwise its plan's price is assumed."""
    language: LanguageSetting = "auto"
    """Of staff pages and commands; ``auto``: the reader's own choice, or the browser's."""
    time_zone: Annotated[Word, AfterValidator(_zone)] = "UTC"
    """Of times on staff pages, such as ``Europe/Moscow``."""
    plans: tuple[Plan, ...] = ()
    yookassa: YooKassaSettings | None = None
    dunning: DunningSettings | None = None
    """None: subscriptions end with their period, without events."""
    receipts: ReceiptSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        ids = [plan.id for plan in self.plans]
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise ValueError(f"plans: {', '.join(twice)} is listed twice; give each plan an id of its own")
        if self.secret is None and self.yookassa is None:
            raise ValueError("secret is missing; set it to the provider's, or add the table [billing.yookassa]")
        if self.yookassa is not None and self.provider == YOOKASSA:
            raise ValueError(f"provider is {YOOKASSA!r}, the name of [billing.yookassa]'s payments; name the other one")
        if self.receipts is not None and (odd := [plan.id for plan in self.plans if plan.price % Decimal("0.01")]):
            raise ValueError(f"plans: the price of {odd[0]} has parts of a kopeck, which no receipt can have")
        if self.form == "tilda" and self.proof != "secret":
            raise ValueError('Tilda signs nothing; with form = "tilda", set proof = "secret" and its API key as secret')
        if self.proof == "secret" and self.encoding != "hex":
            raise ValueError('encoding is how a signature is written; remove it, or set proof = "hmac"')
        return self

    @property
    def dunning_rules(self) -> DunningSettings:
        """What happens around the end of a period."""
        return self.dunning or DunningSettings()

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers whose payments arrive."""
        payments = (self.provider,) if self.secret is not None else ()
        return payments if self.yookassa is None else (*payments, YOOKASSA)

    @property
    def offers(self) -> tuple[Plan, ...]:
        """The plans, each with its currency."""
        return tuple(
            plan if plan.currency else plan.model_copy(update={"currency": self.currency}) for plan in self.plans
        )
