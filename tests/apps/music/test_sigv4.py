"""Our signatures are those of AWS's own signer."""

from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials
from hypothesis import given
from hypothesis import strategies as st

from boathook_music.sigv4 import EMPTY, Credentials, encode_path, encode_query, presign, sign

AT = datetime(2026, 11, 21, 10, 11, 12, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
NAMES = st.from_regex(r"x-amz-meta-[a-z0-9-]{1,12}[a-z0-9]", fullmatch=True)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30)


def theirs(method: str, url: str, headers: dict[str, str], sha256: str, credentials: Credentials, region: str) -> str:
    """Return the Authorization header that botocore makes."""
    request = AWSRequest(method=method, url=url, headers={**headers, "X-Amz-Content-SHA256": sha256})
    signer = auth.S3SigV4Auth(
        TheirCredentials(credentials.key_id, credentials.secret, credentials.token or None), "s3", region
    )
    signer.payload = lambda _request: sha256
    with patch.object(auth, "get_current_datetime", return_value=AT.replace(tzinfo=None)):
        signer.add_auth(request)
    return str(request.headers["Authorization"])


@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "DELETE"]),
    endpoint=st.sampled_from(
        ["https://s3.eu-central-1.amazonaws.com", "http://127.0.0.1:9000", "https://[2001:db8::1]:8443"]
    ),
    key=TEXT,
    query=st.dictionaries(TEXT.filter(bool), TEXT, max_size=4),
    headers=st.dictionaries(NAMES, VALUES, max_size=3),
    token=st.sampled_from(["", "session-token/with+signs="]),
    sha256=st.sampled_from([EMPTY, "UNSIGNED-PAYLOAD"]),
    region=st.sampled_from(["us-east-1", "eu-central-1"]),
)
def test_every_request_is_signed_as_botocore_signs_it(method, endpoint, key, query, headers, token, sha256, region):
    url = endpoint + encode_path(f"/bucket/{key}") + (f"?{encode_query(query)}" if query else "")
    credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    ours = sign(method, url, headers, body_sha256=sha256, credentials=credentials, region=region, at=AT)
    assert ours["authorization"] == theirs(method, url, headers, sha256, credentials, region)


def test_the_link_of_the_documentation_has_its_signature():
    """The example of https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html, read on 2026-11-28."""
    link = presign(
        "GET",
        "https://examplebucket.s3.amazonaws.com/test.txt",
        credentials=Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        region="us-east-1",
        at=datetime(2013, 5, 24, tzinfo=UTC),
        expires_s=86_400,
    )
    assert link.endswith("&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")


@given(
    endpoint=st.sampled_from(["https://s3.eu-central-1.amazonaws.com", "http://127.0.0.1:9000"]),
    key=TEXT,
    token=st.sampled_from(["", "session-token/with+signs="]),
    expires_s=st.integers(1, 3_600),
)
def test_every_link_is_signed_as_botocore_signs_it(endpoint, key, token, expires_s):
    url = endpoint + encode_path(f"/bucket/{key}")
    credentials = Credentials("AKIDEXAMPLE", "geheim", token)
    request = AWSRequest(method="GET", url=url)
    signer = auth.S3SigV4QueryAuth(
        TheirCredentials("AKIDEXAMPLE", "geheim", token or None), "s3", "us-east-1", expires=expires_s
    )
    with patch.object(auth, "get_current_datetime", return_value=AT.replace(tzinfo=None)):
        signer.add_auth(request)
    ours = presign("GET", url, credentials=credentials, region="us-east-1", at=AT, expires_s=expires_s)
    parts, theirs_parts = urlsplit(ours), urlsplit(request.url)
    assert parts.path == theirs_parts.path
    assert dict(parse_qsl(parts.query)) == dict(parse_qsl(theirs_parts.query))


@pytest.mark.parametrize("change", [{"body_sha256": "0" * 64}, {"region": "eu-west-1"}, {"at": AT.replace(second=13)}])
def test_another_body_region_or_time_has_another_signature(change):
    given = {"body_sha256": EMPTY, "credentials": Credentials("a", "b"), "region": "us-east-1", "at": AT}
    url = "https://s3.example.com/bucket/key"
    assert (
        sign("GET", url, {}, **given)["authorization"] != sign("GET", url, {}, **{**given, **change})["authorization"]
    )


def test_no_secret_shows():
    assert "geheim" not in repr(Credentials("id", "geheim", "geheim-token"))
