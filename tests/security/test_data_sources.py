"""A request's proof is invalid for other sources, at other times, and where no secret is configured.

Every provider and scheme against every other, replayed at every moment, with every header a careless sender may add,
and configured in every wrong way.
"""

import functools
import itertools
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from boathook.config import load
from boathook.db.live_settings import LiveSettings
from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Challenge, KeyRequired, Rejected, Request, SourceSpec, Verdict, Verified
from boathook.ingest import quarantine
from boathook.ingest.secrets_cache import SecretsCache
from boathook.providers.recipe import Recipe
from boathook.providers.request_reader import Header
from boathook.providers.schemes import Addresses, Asymmetric, NoProof, Token
from boathook.service.operating.doctor.handlers import CheckStatus as Concern
from boathook.service.operating.doctor.setup import _sources
from boathook.service.receiving.sources import KnownSources
from boathook.testing import signed_request
from boathook.verification import verifier as verify
from boathook.verification.verifier import Verifier
from tests.providers.source_factory import NOW, PUBLIC_URL, ProviderSource, all_sources, make_sources

ALL: Final = list(all_sources())
GUARDED: Final = [provider_source for provider_source in ALL if not isinstance(provider_source.recipe.proof, NoProof)]
WITH_SECRETS: Final = [
    provider_source
    for provider_source in GUARDED
    if provider_source.secrets and not isinstance(provider_source.recipe.proof, Asymmetric)
]

every = pytest.mark.parametrize("provider_source", ALL, ids=str)
guarded = pytest.mark.parametrize("provider_source", GUARDED, ids=str)

# Header storage.

_WORDS = (
    "authorization proxy-authorization cookie set-cookie x-api-key api-key apikey x-auth-token x-access-token x-csrf-token"
    " x-gitlab-token x-github-encoded-secret x-hub-secret x-webhook-secret x-secret secret token password x-password"
    " x-amz-security-token x-aws-ec2-metadata-token x-goog-iap-jwt-assertion x-forwarded-access-token x-vault-token"
    " x-amzn-oidc-data x-ms-token-aad-access-token cf-access-jwt-assertion x-session-id x-user-token private-token"
    " job-token x-shopify-access-token x-slack-token x-telegram-token x-line-token x-discord-token x-plex-token"
    " www-authenticate authentication-info x-real-ip x-forwarded-for x-forwarded-host forwarded via x-original-url"
    " x-http-method-override x-rewrite-url x-request-id traceparent tracestate baggage sentry-trace dnt referer origin"
)
CREDENTIALS: Final = _WORDS.split()
HEADERS: Final = [*CREDENTIALS, *(f"x-{a}{b}-{c}" for a, b, c in itertools.islice(itertools.product(
    string.ascii_lowercase, string.digits, ("key", "secret", "token", "signature")), 200 - len(CREDENTIALS)))]  # fmt: skip
CANARY: Final = "canary-of-a-header"


def crowded(request: Request, without: frozenset[str]) -> Request:
    """Return the request with 200 more headers, each with the canary, but those it has or that its proof is read from."""
    more = {name: CANARY for name in HEADERS if name not in without}
    return replace(request, headers=more | dict(request.headers))


def named(recipe: Recipe) -> set[str]:
    """Return the headers that the recipe and the rule allow to be stored."""
    return {"content-type", "user-agent", *recipe.keep, *(selector.name for selector in verify.selectors_of(recipe)
            if isinstance(selector, Header))}  # fmt: skip


@every
def test_none_of_two_hundred_headers_is_stored_with_an_event(provider_source: ProviderSource):
    assert len(set(HEADERS)) == 200
    verifier, sent = provider_source.verifier(), provider_source.request(provider_source.sign_sample())
    request = crowded(sent, verifier.proof_headers | named(provider_source.recipe))
    verdict = verifier.verify(request, NOW)
    assert isinstance(verdict, Verified), verdict
    assert set(verdict.kept_headers) <= named(provider_source.recipe)
    assert CANARY not in str(verdict.kept_headers)
    assert all(secret not in str(verdict.kept_headers) for secret in provider_source.secrets)


@every
def test_none_of_two_hundred_headers_is_stored_with_a_rejection(provider_source: ProviderSource):
    verifier = provider_source.verifier()
    request = crowded(provider_source.request(provider_source.sign_sample()), verifier.reverify_headers)
    kept = quarantine.stored_headers(request.headers, verifier.reverify_headers)
    allowed = {"content-type", "content-encoding", "user-agent", *verifier.reverify_headers, *quarantine.CREDENTIALS}
    assert set(kept) <= allowed
    assert CANARY not in str(kept)
    if isinstance(provider_source.recipe.proof, Token):
        assert all(secret not in str(kept) for secret in provider_source.secrets)


def test_mutant_if_all_headers_were_kept_the_canary_is_found(monkeypatch: pytest.MonkeyPatch):
    provider_source = ALL[0]
    monkeypatch.setattr(verify, "kept_headers", lambda *_: tuple(HEADERS))
    verdict = provider_source.verifier().verify(
        crowded(provider_source.request(provider_source.sign_sample()), frozenset()), NOW
    )
    assert isinstance(verdict, Verified)
    assert CANARY in str(verdict.kept_headers)


# Binding.


def other_secret(provider_source: ProviderSource) -> ProviderSource:
    """Return a second source of the same provider with a secret of its own."""
    if not provider_source.secrets or isinstance(provider_source.recipe.proof, Asymmetric):
        return next(one for one in sources_again() if one.label == provider_source.label)
    turned = tuple(_turn(secret) for secret in provider_source.secrets)
    return replace(provider_source, secrets=turned, secret=_turn(provider_source.secret))


def _turn(secret: str) -> str:
    """Return another secret of the same form."""
    middle = len(secret) // 2
    swaps = str.maketrans("ABCDEF0123456789", "BCDEFA1234567890")
    turned = secret[:middle] + secret[middle:].translate(swaps)
    return turned if turned != secret else secret[:middle] + secret[middle:].swapcase()


@functools.cache
def sources_again() -> tuple[ProviderSource, ...]:
    """Return all of them once more: senders with a private key have made another."""
    return make_sources()


@guarded
def test_a_signature_is_refused_by_another_source_of_its_provider(provider_source: ProviderSource):
    if isinstance(provider_source.recipe.proof, Addresses):
        pytest.skip("the sender's address is all the proof there is, and alike for all its receivers")
    verdict = (
        other_secret(provider_source).verifier().verify(provider_source.request(provider_source.sign_sample()), NOW)
    )
    assert isinstance(verdict, Rejected | KeyRequired), verdict


def borrowing(theirs: ProviderSource, ours: ProviderSource) -> Verifier | None:
    """Return the verifier of *theirs* given the secret of *ours*; None where it is none for it."""
    try:
        return replace(theirs, secrets=ours.secrets).verifier()
    except ConfigError:
        return None


ALIKE: Final = (
    {"clerk", "gitlab", "openai", "resend", "standard-webhooks"},
    {"rentprog", "suno-token", "umnico"},
    {"auth0", "okta"},
    {"hmac", "rentprog-hmac", "suno-hmac", "suno-sunoapi", "umnico-hmac"},
    {"bitbucket", "jira"},
    {"github", "meta"},
)
"""Senders that write the same proof into the same header: nothing but the secret tells them apart."""


def test_one_secret_at_two_providers_verifies_only_equal_schemes():
    taken = set()
    for ours in WITH_SECRETS:
        request = ours.request(ours.sign_sample())
        for theirs in WITH_SECRETS:
            if theirs.recipe.name == ours.recipe.name:
                continue
            verifier = borrowing(theirs, ours)
            if verifier is not None and isinstance(verifier.verify(request, NOW), Verified):
                taken.add((ours.label, theirs.label))
    assert {pair for pair in taken if not any(set(pair) <= family for family in ALIKE)} == set()


SHARING = """
[sources.shop]
provider = "github"
secrets = ["one secret for two"]
[sources.ads]
provider = "meta"
secrets = ["another secret", "one secret for two"]
verify_token = "a token of ours"
[sources.safe]
provider = "stripe"
secrets = ["whsec_a_secret_of_its_own"]
"""


def test_the_doctor_names_sources_sharing_a_secret_but_not_the_secret(tmp_path: Path):
    (tmp_path / "boathook.toml").write_text(SHARING)
    settings = load(tmp_path / "boathook.toml")
    found = list(_sources(KnownSources(LiveSettings(settings), SecretsCache(settings, ()))))
    [shared] = [one for one in found if "share" in one.found]
    assert shared.verdict is Concern.WARN
    assert "shop" in shared.found
    assert "ads" in shared.found
    assert "safe" not in shared.found
    assert "one secret" not in str(found)


# Replay.

MOMENTS: Final = (0.0, 1.0, 299.0, 301.0, 3_600.0, 86_400.0, 29 * 86_400.0)
REPEATABLE: Final = {"dropbox", "mollie"}
"""Senders that only notify of a change: each request is a new event, and its content is not trusted."""


def dedup_keys_of(verdict: Verdict) -> set[str]:
    """Return the dedup keys of a verified request."""
    assert isinstance(verdict, Verified), verdict
    if verdict.items:
        return {item.dedup_key for item in verdict.items}
    return {verdict.dedup_key} | ({str(verdict.replay_material)} if verdict.replay_material else set())


@guarded
def test_a_replay_at_any_time_with_any_delivery_id_is_deduplicated(provider_source: ProviderSource):
    if provider_source.recipe.name in REPEATABLE:
        pytest.skip("it is to be heard each time")
    verifier, request = provider_source.verifier(), provider_source.request(provider_source.sign_sample())
    first = dedup_keys_of(verifier.verify(request, NOW))
    proven = provider_source.recipe.grade in {ProofStrength.BODY, ProofStrength.METADATA}
    for moment in MOMENTS:
        for number, again in enumerate(copies(request, verifier) if proven else [request]):
            verdict = verifier.verify(again, NOW + moment)
            if isinstance(verdict, Verified):
                assert dedup_keys_of(verdict) & first, (moment, number, verdict)


def copies(request: Request, verifier: Verifier) -> Iterator[Request]:
    """Yield the request as it was, and under another delivery id where one of its headers may name it."""
    yield request
    type = verifier.recipe.type
    # One body tells of several things there, and its sender signs not which.
    besides = (
        {selector.name for selector in type.selectors if isinstance(selector, Header)}
        if type.is_part_of_replay_key
        else set()
    )
    for name in sorted((verifier.reverify_headers & request.headers.keys()) - besides):
        yield replace(request, headers=dict(request.headers) | {name: "f0f0f0f0-0000-4000-8000-00000000f0f0"})


DAY_S: Final = 86_400.0
PATIENT: Final = {
    "paypal": 4 * DAY_S, "sns": DAY_S, "sendgrid": 90_000.0, "mailgun": DAY_S / 2, "mailgun-parent": DAY_S / 2,
    "linear": DAY_S, "discord": 900.0, "suno": 1_800.0, "jira-connect": 900.0, "pubsub": 4_500.0,
}  # fmt: skip
"""Seconds for those who sign once and send for longer, as their documentation says; all others have 300."""


@guarded
def test_a_signed_timestamp_is_refused_outside_the_tolerance(provider_source: ProviderSource):
    verifier, request = provider_source.verifier(), provider_source.request(provider_source.sign_sample())
    verdict = verifier.verify(request, NOW)
    if not isinstance(verdict, Verified) or verdict.timestamp is None:
        pytest.skip("its sender signs no moment")
    longest = PATIENT.get(provider_source.label, 300.0) + 1
    for moment in (-longest, longest, -365 * DAY_S, 365 * DAY_S):
        late = verifier.verify(request, NOW + moment)
        assert isinstance(late, Rejected | KeyRequired), (moment, late)


def test_mutant_without_the_replay_key_a_replay_is_a_new_event(monkeypatch: pytest.MonkeyPatch):
    provider_source = next(one for one in GUARDED if one.recipe.name == "github")
    verifier, request = provider_source.verifier(), provider_source.request(provider_source.sign_sample())
    monkeypatch.setattr(verifier._dedup_keys, "replayed", lambda *_: None)
    first = dedup_keys_of(verifier.verify(request, NOW))
    news = [again for again in copies(request, verifier) if isinstance(verdict := verifier.verify(again, NOW), Verified)
            and not dedup_keys_of(verdict) & first]  # fmt: skip
    assert news != []


# Fail closed.

EMPTY: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("",),
    (" ",),
    ("\n",),
    ("", ""),
    ("\x00",),
    ("\u200b",),
    ("whsec_",),
    ("whsec_ ",),
)


def lacking(provider_source: ProviderSource) -> Iterator[SourceSpec]:
    """Yield configurations of a source without a secret, with all and with each one of its settings missing."""
    settings = dict(provider_source.settings)
    smaller: list[dict[str, Any]] = [
        settings,
        {},
        *({k: v for k, v in settings.items() if k != key} for key in settings),
    ]
    for secrets, options in itertools.product(EMPTY, smaller):
        yield SourceSpec(
            name="s",
            provider=provider_source.recipe.name,
            secrets=secrets,
            public_url=PUBLIC_URL,
            options=options,
            unsigned=False,
        )
    yield SourceSpec(name="s", provider=provider_source.recipe.name, secrets=(), options={}, tolerance_s=1e12)


def forged_requests(provider_source: ProviderSource, spec: SourceSpec) -> Iterator[Request]:
    """Yield requests that an attacker may try who knows the recipe and that there is no secret: nothing signed, or with nothing."""
    genuine = provider_source.request(provider_source.sign_sample())
    sample = provider_source.recipe.sample
    yield replace(
        genuine, headers={"content-type": sample.content_type}, client="192.0.2.9", query="", url=provider_source.url
    )
    yield replace(genuine, headers={**genuine.headers, **dict.fromkeys(genuine.headers, "")}, client="192.0.2.9")
    for guess in dict.fromkeys((*spec.secrets, "", "None", "null", "undefined", "secret")):
        try:
            signed = signed_request(provider_source.recipe.name, guess, sample.body, url=provider_source.url, method=sample.method,
                                    content_type=sample.content_type, timestamp=NOW, **spec.options)  # fmt: skip
        except Exception:  # noqa: BLE001 - nothing can be signed with that guess
            continue
        yield replace(provider_source.request(signed), client="192.0.2.9")


def unsigned_acceptances(provider_source: ProviderSource) -> list[object]:
    """Return the configurations without a secret that take a forged request as an event."""
    found: list[object] = []
    for spec in lacking(provider_source):
        try:
            verifier = Verifier(spec)
        except ConfigError:
            continue
        found += [(spec, verdict) for request in forged_requests(provider_source, spec)
                  if isinstance(verdict := verifier.verify(request, NOW), Verified)]  # fmt: skip
    return found


@every
def test_no_source_without_a_secret_accepts_an_event(provider_source: ProviderSource):
    assert unsigned_acceptances(provider_source) == []


def test_a_source_is_unsigned_only_if_configured_with_strength_none():
    for provider_source in ALL:
        spec = SourceSpec(
            name="s",
            provider=provider_source.recipe.name,
            public_url=PUBLIC_URL,
            options=dict(provider_source.settings),
        )
        try:
            verdict = Verifier(replace(spec, unsigned=True)).verify(
                provider_source.request(provider_source.sign_sample()), NOW
            )
        except ConfigError:
            continue
        assert not isinstance(verdict, Verified) or verdict.grade is ProofStrength.NONE, provider_source.label


def test_mutant_accepting_an_empty_secret_opens_a_source(monkeypatch: pytest.MonkeyPatch):
    provider_source = next(one for one in ALL if one.recipe.name == "github")
    spec = SourceSpec(name="s", provider="github", secrets=("",))
    check = Verifier(replace(spec, secrets=("x",)))
    monkeypatch.setattr("tests.security.test_data_sources.Verifier", lambda _spec: check)
    monkeypatch.setattr("tests.security.test_data_sources.EMPTY", (("x",),))
    assert unsigned_acceptances(provider_source) != []
    assert not isinstance(check.verify(provider_source.request(provider_source.sign_sample()), NOW), Challenge)
