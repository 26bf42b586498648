"""Code, builds and incidents, checked by the providers' packages, vectors, or requests built by hand."""

import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from typing import Any

import jwt
import pytest
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook as StandardWebhook

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.replies import check_status
from boathook.domain.verification import Reason, Rejected, Verified
from boathook.providers import code, find_recipe
from boathook.testing import sign, signed_request
from boathook.verification.verifier import Verifier
from tests.providers.source_factory import body_key
from tests.unit.verifier_factory import NOW, URL, request, verifier

SECRET = "It's a Secret to Everybody"
LONG_SECRET = "a secret of at least 32 bytes, as PyJWT wants them"
STANDARD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="
BODIES = [
    b'{"id":"1","action":"opened","object_kind":"push"}',
    b'{ "id" : "1",\n "action":"opened" }\n',
    '{"id":"1","name":"Жуковский ✓"}'.encode(),
]

each_body = pytest.mark.parametrize("body", BODIES)


def hex_mac(body: bytes, secret: str = SECRET, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), body, algorithm).hexdigest()


def flipped(body: bytes) -> bytes:
    return body[:5] + bytes([body[5] ^ 1]) + body[6:]


def refusal(verdict: object) -> Reason:
    assert isinstance(verdict, Rejected), verdict
    assert verdict.status == 401
    assert SECRET not in verdict.detail
    return verdict.reason


def proof_holds(verdict: object) -> bool:
    """Return whether the signature was right, though a documented vector's text is no JSON as real bodies are."""
    return isinstance(verdict, Verified) or (
        isinstance(verdict, Rejected) and (verdict.status, verdict.reason) == (400, Reason.BODY_MALFORMED)
    )


def refuses_forgeries(judged: Verifier, body: bytes, headers: dict[str, str], **changes: Any) -> None:
    """Assert that these headers verify only this body, and that no request verifies without them."""
    assert isinstance(judged.verify(request(body, headers, **changes), NOW), Verified)
    assert refusal(judged.verify(request(flipped(body), headers, **changes), NOW))
    assert refusal(judged.verify(request(body, {}, **changes), NOW))


# GitHub


@pytest.mark.judge("github")
@each_body
def test_githubs_own_package_and_we_accept_each_other(judge, body):
    theirs = judge.asks("github", "sign", secret=SECRET, body=body)
    refuses_forgeries(verifier("github", SECRET), body, {"x-hub-signature-256": theirs})
    ours = sign("github", SECRET, body)["x-hub-signature-256"]
    assert judge.asks("github", "verify", secret=SECRET, body=body, signature=ours) is True
    assert judge.asks("github", "verify", secret="another", body=body, signature=ours) is False
    assert refusal(verifier("github", "another").verify(request(body, {"x-hub-signature-256": ours}), NOW))


@pytest.mark.judge("github")
def test_githubs_documented_vector():
    # docs.github.com, "Validating webhook deliveries", "Testing the webhook payload validation".
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    sent = request(b"Hello, World!", {"x-hub-signature-256": signature})
    assert isinstance(verifier("github", SECRET).verify(sent, NOW), Verified)


def test_githubs_old_signature_alone_is_not_enough():
    sent = request(BODIES[0], {"x-hub-signature": "sha1=" + hex_mac(BODIES[0], algorithm="sha1")})
    assert refusal(verifier("github", SECRET).verify(sent, NOW)) == Reason.SIGNATURE_MISSING


def test_github_forms_name_their_action_too():
    body = b"payload=%7B%22action%22%3A%22opened%22%7D"
    headers = sign("github", SECRET, body, id="guid-1", type="issues")
    verdict = verifier("github", SECRET).verify(request(body, headers), NOW)
    assert (verdict.dedup_key, verdict.type) == ("guid-1", "issues.opened")


# GitLab


@pytest.mark.judge("gitlab")
@each_body
def test_gitlab_signs_by_standard_webhooks(body):
    now = int(time.time())
    theirs = StandardWebhook(STANDARD)
    headers = {
        "webhook-id": "f5e5f430",
        "webhook-timestamp": str(now),
        "webhook-signature": theirs.sign("f5e5f430", datetime.fromtimestamp(now, UTC), body.decode()),
    }
    gitlab = verifier("gitlab", STANDARD)
    verdict = gitlab.verify(request(body, headers), now)
    assert isinstance(verdict, Verified)
    assert (verdict.dedup_key, verdict.grade, verdict.replay_material) == ("f5e5f430", ProofStrength.BODY, None)
    theirs.verify(body, sign("gitlab", STANDARD, body, timestamp=now, id="f5e5f430"))
    assert refusal(gitlab.verify(request(flipped(body), headers), now)) == Reason.SIGNATURE_MISMATCH
    assert refusal(gitlab.verify(request(body, headers | {"webhook-id": "other"}), now)) == Reason.SIGNATURE_MISMATCH
    assert refusal(gitlab.verify(request(body, headers), now + 301)) == Reason.TIMESTAMP_TOO_OLD


def test_gitlab_ignores_svix_headers():
    headers = {
        name.replace("webhook-", "svix-"): text
        for name, text in sign("gitlab", STANDARD, BODIES[0], timestamp=NOW).items()
    }
    assert refusal(verifier("gitlab", STANDARD).verify(request(BODIES[0], headers), NOW)) == Reason.SIGNATURE_MISSING


@pytest.mark.judge("gitlab")
def test_gitlab_secret_token_is_a_separate_scheme():
    gitlab = verifier("gitlab", "glwt-1", scheme="token")
    headers = {"x-gitlab-token": "glwt-1", "idempotency-key": "f5e5f430", "x-gitlab-event": "Push Hook"}
    verdict = gitlab.verify(request(b'{"ref":"refs/heads/main"}', headers), NOW)
    assert (verdict.dedup_key, verdict.type, verdict.grade) == ("f5e5f430", "Push Hook", ProofStrength.TOKEN)
    assert "x-gitlab-token" not in verdict.kept_headers
    assert refusal(gitlab.verify(request(b"{}", headers | {"x-gitlab-token": "glwt-2"}), NOW)) == Reason.TOKEN_MISMATCH
    assert refusal(gitlab.verify(request(b"{}", {}), NOW)) == Reason.TOKEN_MISSING
    with pytest.raises(ConfigError, match=r"sources\.test\.scheme: .*\"token\""):
        verifier("gitlab", "glwt-1", scheme="hmac")


def test_two_gitlab_events_that_share_the_recursion_id_are_two_events():
    gitlab = verifier("gitlab", "glwt-1", scheme="token")
    shared = {"x-gitlab-token": "glwt-1", "x-gitlab-event-uuid": "13792a34-cac6-4fda-95a8-c58e00a3954e"}
    first, second = (
        gitlab.verify(request(body, shared), NOW) for body in (b'{"object_kind":"push"}', b'{"object_kind":"tag_push"}')
    )
    assert first.dedup_key != second.dedup_key


@pytest.mark.parametrize(
    ("body", "type"),
    [
        (b'{"object_kind":"merge_request","object_attributes":{"action":"open"}}', "merge_request.open"),
        (b'{"object_kind":"pipeline","object_attributes":{"status":"success"}}', "pipeline"),
        (b'{"event_name":"project_create"}', "project_create"),
        (b"{}", "Merge Request Hook"),
    ],
)
def test_gitlabs_types(body, type):
    headers = sign("gitlab", STANDARD, body, timestamp=NOW) | {"x-gitlab-event": "Merge Request Hook"}
    assert verifier("gitlab", STANDARD).verify(request(body, headers), NOW).type == type


# Atlassian


@pytest.mark.judge("bitbucket")
@pytest.mark.judge("jira")
@pytest.mark.parametrize("provider", ["bitbucket", "jira"])
def test_atlassians_documented_vector(provider):
    # support.atlassian.com/bitbucket-cloud/docs/manage-webhooks and developer.atlassian.com/cloud/jira/platform/webhooks
    signature = "sha256=a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9"
    sent = request(b"Hello World!", {"x-hub-signature": signature})
    assert proof_holds(verifier(provider, SECRET).verify(sent, NOW))
    assert refusal(verifier(provider, "another").verify(sent, NOW)) == Reason.SIGNATURE_MISMATCH
    assert sign(provider, SECRET, b"Hello World!")["x-hub-signature"] == signature


def test_bitbucket_names_events_by_header():
    body = b'{"repository":{"full_name":"a/b"}}'
    headers = {
        "x-hub-signature": "sha256=" + hex_mac(body),
        "x-request-uuid": "u1",
        "x-event-key": "pullrequest:created",
        "x-attempt-number": "2",
    }
    bitbucket = verifier("bitbucket", SECRET)
    refuses_forgeries(bitbucket, body, headers)
    verdict = bitbucket.verify(request(body, headers), NOW)
    assert (verdict.dedup_key, verdict.type) == ("u1", "pullrequest:created")
    assert verdict.kept_headers["x-attempt-number"] == "2"
    # The id is not signed, so the body counts too.
    assert verdict.replay_material == body


def test_jira_names_events_by_header_and_type_in_the_body():
    body = b'{"webhookEvent":"jira:issue_updated"}'
    headers = {"x-hub-signature": "sha256=" + hex_mac(body), "x-atlassian-webhook-identifier": "i1"}
    jira = verifier("jira", SECRET)
    refuses_forgeries(jira, body, headers)
    verdict = jira.verify(request(body, headers), NOW)
    assert (verdict.dedup_key, verdict.type, verdict.replay_material) == ("i1", "jira:issue_updated", body)


CONNECT_URLS = [
    ("https://a.example.com/in/jira", ""),
    ("https://a.example.com/in/jira/", ""),
    ("https://a.example.com/", ""),
    ("https://a.example.com/app/in/jira?user_id=1%3Aab&user_key=x+y&z=&z=b&z=a&jwt=abc", "https://a.example.com/app"),
    ("https://a.example.com/in/a&b?b=%D0%96!*()'~&B=1&a=2", ""),
    ("https://a.example.com/app", "https://a.example.com/app"),
]


@pytest.mark.judge("jira")
@pytest.mark.parametrize(("url", "base_url"), CONNECT_URLS)
@pytest.mark.parametrize("method", ["POST", "get"])
def test_our_query_string_hash_is_atlassians(judge, url, base_url, method):
    theirs = judge.asks("jira", "hash", method=method, url=url, base_url=base_url)
    assert len(theirs) == 64
    assert code.hash_request(method, url, base_url) == theirs


def connect_request(token: str, body: bytes = b'{"webhookEvent":"jira:issue_created"}', url: str = URL) -> Any:
    return request(body, {"authorization": f"JWT {token}"}, url=url)


def connect_claims(judge: Any, **changes: Any) -> dict[str, Any]:
    qsh = judge.asks("jira", "hash", method="POST", url=URL, base_url="https://hooks.example.com")
    return {"iss": "site-1", "iat": int(NOW), "exp": int(NOW) + 180, "qsh": qsh} | changes


@pytest.mark.judge("jira")
def test_atlassians_own_package_and_we_accept_each_others_tokens(judge):
    jira = verifier("jira", SECRET, scheme="connect")
    verdict = jira.verify(connect_request(judge.asks("jira", "sign", secret=SECRET, claims=connect_claims(judge))), NOW)
    assert isinstance(verdict, Verified)
    assert (verdict.type, verdict.grade) == ("jira:issue_created", ProofStrength.METADATA)
    ours = signed_request("jira", SECRET, b"{}", timestamp=NOW, url=URL, scheme="connect")
    token = ours.headers["authorization"].removeprefix("JWT ")
    claims = judge.asks("jira", "decode", secret=SECRET, token=token)
    assert claims["qsh"] == judge.asks("jira", "hash", method="POST", url=URL, base_url="")
    assert judge.asks("jira", "decode", secret="another", token=token) is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"qsh": "context-qsh"}, Reason.SIGNATURE_MISMATCH),
        ({"qsh": None}, Reason.SIGNATURE_MISMATCH),
        ({"iss": "site-2"}, Reason.SIGNATURE_MISMATCH),
        ({"exp": int(NOW) - 301}, Reason.TIMESTAMP_TOO_OLD),
        ({"exp": None}, Reason.TIMESTAMP_MALFORMED),
    ],
)
def test_claims_about_something_else_are_refused(judge, changes, reason):
    jira = verifier("jira", SECRET, scheme="connect", client_key="site-1")
    right = judge.asks("jira", "sign", secret=SECRET, claims=connect_claims(judge))
    assert isinstance(jira.verify(connect_request(right), NOW), Verified)
    token = judge.asks("jira", "sign", secret=SECRET, claims=connect_claims(judge, **changes))
    assert refusal(jira.verify(connect_request(token), NOW)) == reason


def test_a_connect_token_holds_for_its_own_address_and_secret_only(judge):
    token = judge.asks("jira", "sign", secret=SECRET, claims=connect_claims(judge))
    jira = verifier("jira", SECRET, scheme="connect")
    for elsewhere in (URL + "?a=1", URL + "/other", "https://hooks.example.com/in/"):
        assert refusal(jira.verify(connect_request(token, url=elsewhere), NOW)) == Reason.SIGNATURE_MISMATCH
    assert refusal(verifier("jira", "another", scheme="connect").verify(connect_request(token), NOW))
    unsigned = jwt.encode(connect_claims(judge), None, algorithm="none")
    assert refusal(jira.verify(connect_request(unsigned), NOW))


def test_mutant_without_the_hash_a_token_would_hold_for_every_address(judge, monkeypatch):
    token = judge.asks("jira", "sign", secret=SECRET, claims=connect_claims(judge))
    monkeypatch.setattr(code, "hash_request", lambda *_: connect_claims(judge)["qsh"])
    jira = verifier("jira", SECRET, scheme="connect")
    assert isinstance(jira.verify(connect_request(token, url=URL + "/other"), NOW), Verified)


def test_a_jira_connect_source_needs_a_public_url():
    with pytest.raises(ConfigError, match=r"sources\.test\.public_url"):
        verifier("jira", SECRET, scheme="connect", public_url="")


# Linear


def linear_request(body: bytes, **headers: str) -> Any:
    return request(body, {"linear-signature": hex_mac(body), "linear-delivery": "d1"} | headers)


LINEAR_BODY = b'{"type":"Issue","action":"create","webhookTimestamp":%d}'


@pytest.mark.judge("linear")
def test_linears_own_package_and_we_agree_about_each_request(judge):
    linear = verifier("linear", SECRET)
    body = LINEAR_BODY % (NOW * 1000)
    for sent, secret in ((body, SECRET), (body, "another"), (flipped(body), SECRET)):
        question = {"secret": secret, "body": sent, "signature": hex_mac(body), "now": NOW}
        theirs = judge.asks("linear", "verify", **question)
        verdict = verifier("linear", secret).verify(request(sent, {"linear-signature": hex_mac(body)}), NOW)
        assert theirs is isinstance(verdict, Verified)
    ours = signed_request("linear", SECRET, body, timestamp=NOW)
    assert judge.asks(
        "linear", "verify", secret=SECRET, body=ours.body, signature=ours.headers["linear-signature"], now=NOW
    )
    verdict = linear.verify(linear_request(body), NOW)
    assert (verdict.dedup_key, verdict.type, verdict.volatile) == ("d1", "Issue.create", ("webhookTimestamp",))
    assert verdict.timestamp == datetime.fromtimestamp(NOW, UTC)


def test_linear_counts_the_signed_time_not_the_headers():
    linear = verifier("linear", SECRET)
    old = LINEAR_BODY % ((NOW - 28_801) * 1000)
    fresh = str(int(NOW * 1000))
    assert refusal(linear.verify(linear_request(old, **{"linear-timestamp": fresh}), NOW)) == Reason.TIMESTAMP_TOO_OLD
    ahead = linear_request(LINEAR_BODY % ((NOW + 28_801) * 1000))
    assert refusal(linear.verify(ahead, NOW)) == Reason.TIMESTAMP_IN_FUTURE
    assert refusal(linear.verify(linear_request(b"{}"), NOW)) == Reason.TIMESTAMP_MISSING


@pytest.mark.parametrize("late_s", [60, 3_660, 25_260])
def test_a_late_linear_retry_with_its_first_timestamp_is_accepted(late_s):
    """Its retries come 1 minute, 1 hour and 6 hours after one another."""
    sent = linear_request(LINEAR_BODY % (NOW * 1000))
    first, late = (verifier("linear", SECRET).verify(sent, NOW + moment) for moment in (0, late_s))
    assert isinstance(late, Verified)
    assert late.dedup_key == first.dedup_key


def test_linear_tolerance_can_be_configured():
    sent = linear_request(LINEAR_BODY % (NOW * 1000))
    narrow = verifier("linear", SECRET, tolerance_s=60.0)
    assert refusal(narrow.verify(sent, NOW + 61)) == Reason.TIMESTAMP_TOO_OLD


def test_mutant_without_its_stamp_an_old_request_of_linears_would_do(monkeypatch):
    stampless = replace(code.LINEAR, proof=replace(code.LINEAR.proof, timestamp=None))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: stampless)
    old = LINEAR_BODY % ((NOW - 28_801) * 1000)
    assert isinstance(verifier("linear", SECRET).verify(linear_request(old), NOW), Verified)


# Vercel


@pytest.mark.judge("vercel")
def test_vercel_signs_with_sha1():
    # Built by hand from vercel.com/docs/headers/request-headers and vercel.com/docs/webhooks/webhooks-api.
    body = b'{"id":"evt_1","type":"deployment.created","createdAt":1,"payload":{}}'
    vercel = verifier("vercel", SECRET)
    headers = {"x-vercel-signature": hex_mac(body, algorithm="sha1")}
    refuses_forgeries(vercel, body, headers)
    verdict = vercel.verify(request(body, headers), NOW)
    assert (verdict.dedup_key, verdict.type, verdict.replay_material) == ("evt_1", "deployment.created", None)
    assert refusal(vercel.verify(request(body, {"x-vercel-signature": hex_mac(body)}), NOW))
    assert sign("vercel", SECRET, body)["x-vercel-signature"] == headers["x-vercel-signature"]


# Netlify


def netlify_token(body: bytes, secret: str = LONG_SECRET, **changes: Any) -> dict[str, str]:
    claims = {"iss": "netlify", "sha256": hashlib.sha256(body).hexdigest()} | changes
    return {"x-webhook-signature": jwt.encode(claims, secret, algorithm="HS256"), "x-netlify-event": "deploy_created"}


@pytest.mark.judge("netlify")
@each_body
def test_netlify_signs_a_hash_of_the_body(body):
    netlify = verifier("netlify", LONG_SECRET)
    refuses_forgeries(netlify, body, netlify_token(body))
    verdict = netlify.verify(request(body, netlify_token(body)), NOW)
    assert (verdict.type, verdict.grade) == ("deploy_created", ProofStrength.BODY)
    assert verdict.dedup_key == netlify.verify(request(body, netlify_token(body)), NOW + 1).dedup_key
    locked = netlify.verify(request(body, netlify_token(body) | {"x-netlify-event": "deploy_locked"}), NOW)
    assert locked.dedup_key != verdict.dedup_key
    ours = sign("netlify", LONG_SECRET, body)["x-webhook-signature"]
    claims = jwt.decode(ours, LONG_SECRET, algorithms=["HS256"], issuer="netlify")
    assert claims["sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize(
    "headers",
    [
        netlify_token(b"{}", "another" + LONG_SECRET),
        netlify_token(b"{}", iss="mallory"),
        netlify_token(b"{}", sha256=None),
        netlify_token(b"{}", sha256=hashlib.sha256(b"[]").hexdigest()),
        {"x-webhook-signature": jwt.encode({"iss": "netlify"}, None, algorithm="none")},
        {"x-webhook-signature": "a.b.c"},
    ],
)
def test_other_tokens_are_not_netlifys(headers):
    assert refusal(verifier("netlify", LONG_SECRET).verify(request(b"{}", headers), NOW))


def test_mutant_without_the_claim_check_a_netlify_token_fits_any_body(monkeypatch):
    careless = replace(code.NETLIFY, proof=replace(code.NETLIFY.proof, check_claims=lambda _claims, _facts: None))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: careless)
    sent = request(b'{"altered":true}', netlify_token(b"{}"))
    assert isinstance(verifier("netlify", LONG_SECRET).verify(sent, NOW), Verified)


# CircleCI


@pytest.mark.judge("circleci")
@pytest.mark.parametrize(
    ("body", "secret", "signature"),
    [
        # circleci.com/docs/guides/integration/outbound-webhooks, "Validate webhooks".
        (b"hello world", "secret", "734cc62f32841568f45715aeb9f4d7891324e6d948e4c6c60c0621cdac48623a"),
        (b"lalala", "another-secret", "daa220016c8f29a8b214fbfc3671aeec2145cfb1e6790184ffb38b6d0425fa00"),
        (
            b"an-important-request-payload",
            "hunter123",
            "9be2242094a9a8c00c64306f382a7f9d691de910b4a266f67bd314ef18ac49fa",
        ),
    ],
)
def test_circlecis_documented_vectors(body, secret, signature):
    sent = request(body, {"circleci-signature": f"v1={signature},v2=00"})
    assert proof_holds(verifier("circleci", secret).verify(sent, NOW))
    assert refusal(verifier("circleci", SECRET).verify(sent, NOW)) == Reason.SIGNATURE_MISMATCH
    assert sign("circleci", secret, body)["circleci-signature"] == f"v1={signature}"


def test_circleci_names_events_in_the_body():
    body = b'{"id":"3888f21b","type":"job-completed"}'
    circleci = verifier("circleci", SECRET)
    headers = {"circleci-signature": "v1=" + hex_mac(body), "circleci-event-type": "workflow-completed"}
    refuses_forgeries(circleci, body, headers)
    verdict = circleci.verify(request(body, headers), NOW)
    assert (verdict.dedup_key, verdict.type) == ("3888f21b", "job-completed")
    assert refusal(circleci.verify(request(body, {"circleci-signature": "v2=" + hex_mac(body)}), NOW))


# Sentry


@pytest.mark.judge("sentry")
def test_sentry_signs_the_body():
    # Built by hand from docs.sentry.io/organization/integrations/integration-platform/webhooks.
    body = b'{"action": "created", "data": {"issue": {"id": "1"}}}'
    sentry = verifier("sentry", SECRET)
    headers = {
        "sentry-hook-signature": hex_mac(body),
        "sentry-hook-resource": "issue",
        "sentry-hook-timestamp": "1",
        "request-id": "r1",
    }
    refuses_forgeries(sentry, body, headers)
    verdict = sentry.verify(request(body, headers), NOW)
    assert (verdict.dedup_key, verdict.type) == (body_key(body, "issue.created"), "issue.created")
    assert verdict.kept_headers["request-id"] == "r1"
    assert verdict.timestamp is None
    assert sign("sentry", SECRET, body)["sentry-hook-signature"] == headers["sentry-hook-signature"]
    # A retry has another Request-ID, which its code makes for each request:
    # https://github.com/getsentry/sentry/blob/master/src/sentry/sentry_apps/api/serializers/app_platform_event.py
    retry = sentry.verify(request(body, headers | {"request-id": "r2"}), NOW)
    assert (retry.dedup_key, retry.kept_headers["request-id"]) == (verdict.dedup_key, "r2")
    other = sentry.verify(request(body, headers | {"sentry-hook-resource": "error"}), NOW)
    assert other.dedup_key != verdict.dedup_key


# PagerDuty


@pytest.mark.judge("pagerduty")
def test_pagerduty_sends_a_signature_for_each_secret():
    # Built by hand from developer.pagerduty.com/docs/verifying-webhook-signatures.
    body = b'{"event":{"id":"01BTY5VIPAJF","event_type":"incident.triggered"}}'
    pagerduty = verifier("pagerduty", SECRET)
    headers = {"x-pagerduty-signature": f"v1={hex_mac(body, 'retired')},v1={hex_mac(body)}", "x-webhook-id": "w1"}
    refuses_forgeries(pagerduty, body, headers)
    verdict = pagerduty.verify(request(body, headers), NOW)
    assert (verdict.dedup_key, verdict.type) == ("01BTY5VIPAJF", "incident.triggered")
    assert refusal(verifier("pagerduty", "another").verify(request(body, headers), NOW))
    ours = sign("pagerduty", ["retired", SECRET], body)
    assert ours["x-pagerduty-signature"] == headers["x-pagerduty-signature"]


# All of them


@pytest.mark.parametrize("recipe", code.RECIPES, ids=lambda recipe: recipe.name)
def test_samples_bring_an_id_and_a_type_of_their_own(recipe):
    secret = recipe.sample.secret
    sent = signed_request(recipe.name, secret, timestamp=NOW, url=URL)
    verdict = verifier(recipe.name, secret).verify(request(sent.body, dict(sent.headers)), NOW)
    assert isinstance(verdict, Verified)
    assert verdict.type != "unknown"
    assert "boathook-sample" in verdict.dedup_key or not recipe.id.selectors or not recipe.retries_keep_id


@pytest.mark.parametrize("name", ["bitbucket", "jira", "sentry", "pagerduty"])
def test_statuses_that_stop_a_sender_are_refused(name):
    stops = find_recipe(name).stop_statuses
    for status in (400, 403, 404, 410, 422):
        with pytest.raises(ValueError, match="stop sending"):
            check_status(status, stops)
    assert check_status(503, stops) == 503
    # Jira and PagerDuty come back after 429, the others only after a 5xx.
    assert (429 in stops) == (name in {"bitbucket", "sentry"})


def test_only_some_senders_have_stop_statuses():
    stopping = {recipe.name for recipe in code.RECIPES if recipe.stop_statuses}
    assert stopping == {"bitbucket", "jira", "sentry", "pagerduty"}


def test_descriptions_can_be_written_as_json():
    for recipe in code.RECIPES:
        shown = json.loads(json.dumps(recipe.describe()))
        assert shown["checked"]
        assert shown["retries"]
