"""Our signatures are those of AWS's own signer."""

from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as TheirCredentials
from hypothesis import given
from hypothesis import strategies as st

from boathook.apps.music.sigv4 import EMPTY, Credentials, encode_path, encode_query, sign

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


@pytest.mark.parametrize("change", [{"body_sha256": "0" * 64}, {"region": "eu-west-1"}, {"at": AT.replace(second=13)}])
def test_another_body_region_or_time_has_another_signature(change):
    given = {"body_sha256": EMPTY, "credentials": Credentials("a", "b"), "region": "us-east-1", "at": AT}
    url = "https://s3.example.com/bucket/key"
    assert (
        sign("GET", url, {}, **given)["authorization"] != sign("GET", url, {}, **{**given, **change})["authorization"]
    )


def test_no_secret_shows():
    assert "geheim" not in repr(Credentials("id", "geheim", "geheim-token"))
