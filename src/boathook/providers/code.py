"""Recipes of developer tools: code hosting, issues, builds, errors, incidents."""

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm
from boathook.providers.event_types import GITHUB_TYPES
from boathook.providers.recipe import (
    FINAL_4XX,
    MIB,
    BodyFormat,
    Confidence,
    EventId,
    EventType,
    Recipe,
    Sample,
    SecretForm,
    Setting,
)
from boathook.providers.request_reader import Form, Header, Json, RequestReader, read_pairs
from boathook.providers.schemes import (
    FieldMac,
    Hmac,
    Jwt,
    Pairs,
    Plain,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    SignedTimestamp,
    TimestampFormat,
    Token,
)
from boathook.providers.standard import STANDARD_HMAC

_LINEAR_RETRIES_S = 28_800.0
"""The last of Linear's retries comes 7 h 1 min after the first attempt; the rest allows for clock skew and delays."""
_LIVES_S = 180
"""Seconds for which Atlassian's tokens are valid."""
_MANY = 300
"""Maximum characters of a claim that are shown to the operator."""


def _hub_signature(header: str) -> Hmac:
    return Hmac(headers=(SignatureHeaders(signature=header),), form=Plain("sha256="))


# Linear.


def state_linear(reader: RequestReader, _secret: str) -> SignedParts:
    """Return the body, which contains the timestamp, as the signed bytes.

    https://linear.app/developers/webhooks
    """
    return (SignedPart(Header("linear-signature"), reader.request.body),)


# Atlassian Connect.


def hash_request(method: str, url: str, base_url: str) -> str:
    """Return Atlassian's query string hash: SHA-256 over method, path below the app's base and sorted query.

    https://developer.atlassian.com/cloud/jira/platform/understanding-jwt-for-connect-apps/
    """
    parts = urlsplit(url)
    path = parts.path.removeprefix(urlsplit(base_url).path.rstrip("/")).rstrip("/").replace("&", "%26") or "/"
    if not path.startswith("/"):
        path = "/" + path
    values: dict[str, list[str]] = {}
    for name, value in read_pairs(parts.query):
        if name != "jwt":
            values.setdefault(name, []).append(value)
    query = "&".join(f"{_escape(name)}={','.join(map(_escape, sorted(values[name])))}" for name in sorted(values))
    return hashlib.sha256(f"{method.upper()}&{path}&{query}".encode()).hexdigest()


def _escape(text: str) -> str:
    return quote(text, safe="")


def check_connect_claims(claims: Mapping[str, Any], reader: RequestReader) -> str | None:
    """Check that Atlassian's claims match this request line and come from the configured site."""
    request, client_key = reader.request, reader.settings.get("client_key", "")
    if claims.get("qsh") != hash_request(request.method, request.url, reader.settings.get("base_url", "")):
        return f"the claim qsh is not the hash of {request.method} {request.url[:_MANY]}; check public_url and base_url"
    if client_key and claims.get("iss") != client_key:
        return f"the claim iss names the site {str(claims.get('iss'))[:_MANY]!r}, not client_key"
    return None


def claim_connect(reader: RequestReader, now: float) -> dict[str, Any]:
    """Return the claims of Atlassian's token for a request."""
    request, settings = reader.request, reader.settings
    return {
        "iss": settings.get("client_key") or "boathook-sample-client-key",
        "iat": int(now),
        "exp": int(now) + _LIVES_S,
        "qsh": hash_request(request.method, request.url, settings.get("base_url", "")),
    }


# Netlify.


def check_netlify_claims(claims: Mapping[str, Any], reader: RequestReader) -> str | None:
    """Check that Netlify's claim is the hash of this body.

    https://docs.netlify.com/site-deploys/notifications/#payload-signature
    """
    claimed = claims.get("sha256")
    if not isinstance(claimed, str) or claimed.lower() != hashlib.sha256(reader.request.body).hexdigest():
        return "the claim sha256 is not the hash of the body: it was altered after signing"
    return None


def claim_netlify(reader: RequestReader, _now: float) -> dict[str, Any]:
    """Return the claims of Netlify's token for a request."""
    return {"iss": "netlify", "sha256": hashlib.sha256(reader.request.body).hexdigest()}


GITHUB = Recipe(
    name="github",
    title="GitHub",
    docs="https://docs.github.com/webhooks",
    # https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
    max_body=25 * MIB,
    grade=ProofStrength.BODY,
    proof=_hub_signature("x-hub-signature-256"),
    sample=Sample(
        body=b'{"action":"opened","issue":{"number":1,"title":"A sample"},"repository":{"full_name":"a/b"}}',
        headers={"x-github-delivery": "boathook-sample-0000-0000-000000000000", "x-github-event": "issues"},
    ),
    # A redelivery keeps it: https://docs.github.com/webhooks/using-webhooks/best-practices-for-using-webhooks
    id=EventId(selectors=(Header("x-github-delivery"),), is_signed=False, is_kept_in_retries=True),
    # Webhooks may be set to send a form, whose field payload holds the JSON.
    type=EventType(
        selectors=((Header("x-github-event"), Json("action"), Form("payload", "action")),),
        known=tuple(GITHUB_TYPES),
        rests=GITHUB_TYPES,
    ),
    body=BodyFormat.ANY,
    keep=("x-github-hook-id", "x-github-hook-installation-target-id", "x-github-hook-installation-target-type"),
    answer_within_s=10.0,
    retries="none automatic; a manual redelivery keeps the id",
    # A redelivery can be requested for 3 days on github.com, and for 7 days on Enterprise Server.
    retries_for_days=7.0,
    checked=("@octokit/webhooks-methods (npm), both ways", "1 vector of its documentation"),
    setup=(
        "In the repository, organization or app open Settings, then Webhooks, and add a webhook.",
        "Enter {url} as payload URL, the content type application/json, and choose the events.",
        "Choose a long random secret, and put the same secret into the source's secrets.",
        "GitHub does not retry automatically: resend failed deliveries with Redeliver under Recent Deliveries.",
    ),
    is_secret_chosen=True,
    secret_form=SecretForm(others={"gh[pousr]_|github_pat_": "a token of GitHub's API"}),
)

_GITLAB_BODY = (
    b'{"object_kind":"merge_request","project":{"path_with_namespace":"a/b"},"object_attributes":{"iid":1,'
    b'"title":"A sample","action":"open"}}'
)

_GITLAB = Recipe(
    name="gitlab",
    title="GitLab",
    docs="https://docs.gitlab.com/user/project/integrations/webhooks/",
    # https://gitlab.com/gitlab-org/gitlab/-/merge_requests/38687
    max_body=25 * MIB,
    grade=ProofStrength.BODY,
    proof=replace(STANDARD_HMAC, headers=STANDARD_HMAC.headers[:1]),
    sample=Sample(
        body=_GITLAB_BODY,
        headers={"webhook-id": "boathook-sample-0000-0000-000000000000", "x-gitlab-event": "Merge Request Hook"},
        secret="whsec_Ym9hdGhvb2stc2FtcGxlLXNlY3JldC0zMi1ieXRlcyE=",
    ),
    # X-Gitlab-Event-UUID does not identify an event: hooks triggered by other hooks share one.
    id=EventId(selectors=(Header("webhook-id"),), is_kept_in_retries=True),
    type=EventType(
        selectors=(
            (Json("object_kind"), Json("object_attributes.action")),
            Json("event_name"),
            Header("x-gitlab-event"),
        )
    ),
    secret_form=SecretForm(others={"glpat-": "an access token of GitLab's API", "gldt-": "a deploy token"}),
    keep=("x-gitlab-event-uuid", "x-gitlab-webhook-uuid", "x-gitlab-instance"),
    answer_within_s=10.0,
    retries="none automatic; 4 consecutive failures pause the hook, 40 disable it",
    checked=("standardwebhooks (Python), both ways",),
    setup=(
        "In the project or group open Settings, then Webhooks, and add one.",
        "Enter {url} and choose the triggers.",
        (
            "Create a signing token, which begins with whsec_, and put it into the source's secrets. If GitLab "
            'offers only the secret token, choose a long random one and set scheme = "token".'
        ),
    ),
)
_GITLAB_TOKEN = replace(
    _GITLAB,
    title="GitLab, with a secret token",
    grade=ProofStrength.TOKEN,
    proof=Token(selector=Header("x-gitlab-token")),
    sample=Sample(
        body=_GITLAB_BODY,
        headers={"idempotency-key": "boathook-sample-0000-0000-000000000000", "x-gitlab-event": "Merge Request Hook"},
        settings={"scheme": "token"},
    ),
    id=EventId(selectors=(Header("idempotency-key"),), is_signed=False, is_kept_in_retries=True),
    checked=("built by hand from its documentation",),
)
GITLAB = replace(_GITLAB, schemes={"token": _GITLAB_TOKEN})

BITBUCKET = Recipe(
    name="bitbucket",
    title="Bitbucket Cloud",
    docs="https://support.atlassian.com/bitbucket-cloud/docs/manage-webhooks/",
    grade=ProofStrength.BODY,
    proof=_hub_signature("x-hub-signature"),
    sample=Sample(
        body=b'{"repository":{"full_name":"a/b"},"actor":{"display_name":"A sample"},"push":{"changes":[]}}',
        headers={"x-request-uuid": "boathook-sample-0000-0000-000000000000", "x-event-key": "repo:push"},
    ),
    id=EventId(selectors=(Header("x-request-uuid"),), is_signed=False),
    type=EventType(selectors=(Header("x-event-key"),)),
    keep=("x-hook-uuid", "x-attempt-number"),
    stop_statuses=FINAL_4XX,
    answer_within_s=10.0,
    retries="2 more times, and only after a 5xx; bodies over 256 KB are dropped unsent",
    checked=("1 vector of its documentation",),
    setup=(
        "In the repository open Repository settings, then Webhooks, and add one.",
        "Enter {url} and choose the triggers.",
        "Choose a long random secret, and put the same secret into the source's secrets.",
        "Bitbucket silently drops bodies above 256 KB.",
    ),
    is_secret_chosen=True,
)

_JIRA = Recipe(
    name="jira",
    title="Jira Cloud",
    docs="https://developer.atlassian.com/cloud/jira/platform/webhooks/",
    grade=ProofStrength.BODY,
    proof=_hub_signature("x-hub-signature"),
    sample=Sample(
        body=b'{"timestamp":1763700000000,"webhookEvent":"jira:issue_created","issue":{"id":"10001","key":"A-1"}}',
        headers={"x-atlassian-webhook-identifier": "boathook-sample"},
    ),
    id=EventId(selectors=(Header("x-atlassian-webhook-identifier"),), is_signed=False, is_kept_in_retries=True),
    type=EventType(selectors=(Json("webhookEvent"),)),
    keep=("x-atlassian-webhook-retry", "x-atlassian-webhook-flow"),
    stop_statuses=FINAL_4XX - {429},
    retries="up to 5 times within about half an hour, after 408, 409, 425, 429, 5xx or no response",
    retries_for_days=0.1,
    checked=("1 vector of its documentation",),
    setup=(
        "In Jira open Settings, System, WebHooks, and create one.",
        "Enter {url}, choose the events, and optionally narrow them with JQL.",
        (
            "Choose a long random secret, and put the same secret into the source's secrets. Connect apps use "
            'another scheme: set scheme = "connect" and put their shared secret into the source\'s secrets.'
        ),
    ),
    is_secret_chosen=True,
)
_JIRA_CONNECT = replace(
    _JIRA,
    title="Jira Cloud, from a Connect app",
    docs="https://developer.atlassian.com/cloud/jira/platform/understanding-jwt-for-connect-apps/",
    # The token covers method, path and query; the body is unsigned.
    grade=ProofStrength.METADATA,
    proof=Jwt(
        header="authorization",
        prefix="JWT ",
        algorithms=("HS256",),
        check_claims=check_connect_claims,
        claim=claim_connect,
    ),
    needs_url=True,
    sample=replace(_JIRA.sample, settings={"scheme": "connect"}),
    settings=(
        Setting(name="base_url", help="The baseUrl of the app's descriptor, if it has a path"),
        Setting(name="client_key", help="The clientKey of the one site whose events are accepted"),
    ),
    checked=("atlassian-jwt (npm), both ways",),
)
JIRA = replace(_JIRA, schemes={"connect": _JIRA_CONNECT})

LINEAR = Recipe(
    name="linear",
    title="Linear",
    docs="https://linear.app/developers/webhooks",
    grade=ProofStrength.BODY,
    # The header Linear-Timestamp repeats the time, but is not signed.
    proof=FieldMac(
        read_signed_parts=state_linear,
        # It is not documented whether a retry has a new timestamp. If not, a narrower window would reject every late
        # retry.
        timestamp=SignedTimestamp(
            selector=Json("webhookTimestamp"), unit=TimestampFormat.MILLISECONDS, tolerance_s=_LINEAR_RETRIES_S
        ),
        proof_headers=("linear-signature",),
    ),
    sample=Sample(
        body=b'{"action":"create","type":"Issue","createdAt":"2026-11-21T10:00:00.000Z","data":{"id":"boathook-sample",'
        b'"title":"A sample"},"organizationId":"o1","webhookId":"w1","webhookTimestamp":1763700000000}',
        headers={"linear-delivery": "boathook-sample-0000-0000-000000000000", "linear-event": "Issue"},
    ),
    id=EventId(selectors=(Header("linear-delivery"),), is_signed=False),
    type=EventType(selectors=((Json("type"), Json("action")),)),
    volatile=("webhookTimestamp",),
    keep=("linear-event",),
    answer_within_s=5.0,
    retries="3 times: after 1 minute, 1 hour, 6 hours; receivers that keep failing may be disabled",
    retries_for_days=0.5,
    checked=("@linear/sdk (npm), its verifying half",),
    confidence={"volatile": Confidence.MEMORY},
    setup=(
        "In Linear open Settings, API, and create a webhook.",
        "Enter {url} and choose the data change events.",
        "Copy the signing secret into the source's secrets.",
    ),
)

VERCEL = Recipe(
    name="vercel",
    title="Vercel",
    docs="https://vercel.com/docs/webhooks",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-vercel-signature"),), algorithm=Algorithm.SHA1),
    sample=Sample(
        body=b'{"id":"boathook-sample","type":"deployment.succeeded","createdAt":1763700000000,"region":"fra1",'
        b'"payload":{"deployment":{"id":"dpl_1","name":"a"}}}'
    ),
    id=EventId(selectors=(Json("id"),)),
    type=EventType(selectors=(Json("type"),)),
    answer_within_s=30.0,
    retries="for up to 24 hours",
    retries_for_days=1.0,
    checked=("built by hand from its documentation",),
    confidence={
        "answer_within_s": Confidence.MEMORY,
        "retries": Confidence.MEMORY,
        "retries_for_days": Confidence.MEMORY,
    },
    setup=(
        "In Vercel open the team's Settings, then Webhooks, and create one.",
        "Enter {url}, and choose events and projects.",
        (
            "Copy the secret, which is shown once, into the source's secrets. Webhooks of an integration are "
            "signed with the integration's client secret instead."
        ),
    ),
)

NETLIFY = Recipe(
    name="netlify",
    title="Netlify",
    docs="https://docs.netlify.com/site-deploys/notifications/",
    grade=ProofStrength.BODY,
    proof=Jwt(
        header="x-webhook-signature",
        algorithms=("HS256",),
        issuers=("netlify",),
        must_expire=False,
        check_claims=check_netlify_claims,
        claim=claim_netlify,
    ),
    sample=Sample(
        body=b'{"id":"boathook-sample","site_id":"s1","state":"ready","name":"a","branch":"main",'
        b'"updated_at":"2026-11-21T10:00:00.000Z"}',
        headers={"x-netlify-event": "deploy_created"},
    ),
    # A deploy has several events with one id, as created, ready and locked; type and body distinguish them.
    type=EventType(selectors=(Header("x-netlify-event"), Json("state")), is_part_of_replay_key=True),
    retries="not published; 6 consecutive failures disable the hook",
    checked=("PyJWT (Python), both ways",),
    confidence={"type": Confidence.SECONDARY, "retries": Confidence.MEMORY, "body": Confidence.SECONDARY},
    setup=(
        "In Netlify open the project's configuration, Notifications, and add an HTTP POST request.",
        "Choose the event and enter {url}.",
        "Choose a long random JWS secret token, and put the same token into the source's secrets.",
    ),
    is_secret_chosen=True,
)

CIRCLECI = Recipe(
    name="circleci",
    title="CircleCI",
    docs="https://circleci.com/docs/guides/integration/outbound-webhooks/",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="circleci-signature"),), form=Pairs(signature="v1")),
    sample=Sample(
        body=b'{"id":"boathook-sample","type":"workflow-completed","happened_at":"2026-11-21T10:00:00.000Z",'
        b'"workflow":{"id":"w1","status":"success"},"project":{"slug":"github/a/b"}}',
        headers={"circleci-event-type": "workflow-completed"},
    ),
    id=EventId(selectors=(Json("id"),)),
    type=EventType(selectors=(Json("type"), Header("circleci-event-type"))),
    answer_within_s=10.0,
    retries="yes, on a schedule that is not published",
    checked=("3 vectors of its documentation",),
    setup=(
        "In CircleCI open the project's settings, then Webhooks, and add one.",
        "Enter {url} and choose workflow or job completed.",
        "Choose a long random secret token, and put the same token into the source's secrets.",
    ),
    is_secret_chosen=True,
)

SENTRY = Recipe(
    name="sentry",
    title="Sentry",
    docs="https://docs.sentry.io/organization/integrations/integration-platform/webhooks/",
    grade=ProofStrength.BODY,
    # Sentry-Hook-Timestamp is not signed, so it proves nothing.
    proof=Hmac(headers=(SignatureHeaders(signature="sentry-hook-signature"),)),
    sample=Sample(
        body=b'{"action":"created","installation":{"uuid":"i1"},"data":{"issue":{"id":"1","title":"A sample"}}}',
        headers={"request-id": "boathook-sample", "sentry-hook-resource": "issue"},
    ),
    # Each attempt has a new id, so a retry is recognized by its type and body:
    # https://github.com/getsentry/sentry/blob/master/src/sentry/sentry_apps/api/serializers/app_platform_event.py
    id=EventId(selectors=(Header("request-id"),), is_signed=False, is_kept_in_retries=False),
    type=EventType(selectors=((Header("sentry-hook-resource"), Json("action")),)),
    keep=("sentry-hook-timestamp",),
    stop_statuses=FINAL_4XX,
    answer_within_s=1.0,
    retries="published apps: 3 times, 5 minutes apart, after a timeout or a 5xx; internal apps: never; 1,000 timeouts "
    "in 24 hours end the subscription",
    retries_for_days=0.1,
    checked=("built by hand from its documentation",),
    setup=(
        "In Sentry open Settings, Developer Settings, and create an internal integration.",
        "Enter {url} as webhook URL and enable the resources.",
        "Copy the integration's client secret into the source's secrets.",
        "Sentry waits one second and never retries.",
    ),
)

PAGERDUTY = Recipe(
    name="pagerduty",
    title="PagerDuty (V3)",
    docs="https://developer.pagerduty.com/docs/verifying-webhook-signatures",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-pagerduty-signature"),), form=Pairs(signature="v1")),
    sample=Sample(
        body=b'{"event":{"id":"boathook-sample","event_type":"incident.triggered","resource_type":"incident",'
        b'"occurred_at":"2026-11-21T10:00:00.000Z","data":{"id":"P1","type":"incident","title":"A sample"}}}'
    ),
    id=EventId(selectors=(Json("event.id"),)),
    type=EventType(selectors=(Json("event.event_type"),)),
    keep=("x-webhook-id", "x-webhook-subscription"),
    stop_statuses=FINAL_4XX - {429},
    answer_within_s=5.0,
    retries="for up to 48 hours, after 429, 5xx or no response, while later events wait; after 3 consecutive failed "
    "events the subscription is disabled for 24 hours, and events of that time are never sent",
    retries_for_days=2.0,
    checked=("built by hand from its documentation",),
    confidence={"keep": Confidence.SECONDARY},
    setup=(
        "In PagerDuty open Integrations, then Generic Webhooks (v3), and add one.",
        "Enter {url} and choose scope and events.",
        "Copy the signing secret, which is shown once, into the source's secrets.",
    ),
)

RECIPES = (GITHUB, GITLAB, BITBUCKET, JIRA, LINEAR, VERCEL, NETLIFY, CIRCLECI, SENTRY, PAGERDUTY)
