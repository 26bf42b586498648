"""The table [music]: the source it creates, and the values it rejects."""

import json
import time
from pathlib import Path

import pytest

from boathook.config import load
from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Request, Verified
from boathook.ingest.sources import source_spec
from boathook.server.loading import with_apps
from boathook.testing import signed_request
from boathook.verification.verifier import Verifier
from tests.apps.music.server import callback

SECRET = "geheim-geheim"
PATHS = ("/generate-music-callb", "/functions/v1/generate-music-callb")


def loaded(folder: Path, music: str):
    file = folder / "boathook.toml"
    file.write_text(f'[apps]\nload = ["music"]\n[music]\n{music}')
    return with_apps(load(file))[0]


def refusal(folder: Path, music: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, music)
    return str(caught.value)


@pytest.mark.parametrize(
    ("provider", "named", "grade", "scheme"),
    [
        ("suno", "suno", ProofStrength.METADATA, {}),
        ("suno-musicapi", "suno-musicapi", ProofStrength.BODY, {}),
        ("suno-sunoapi", "suno-sunoapi", ProofStrength.BODY, {}),
        ("hmac", "suno", ProofStrength.BODY, {"scheme": "hmac"}),
        ("token", "suno", ProofStrength.TOKEN, {"scheme": "token"}),
    ],
)
def test_each_provider_verifies_callbacks_and_reads_the_delivery_id(tmp_path, provider, named, grade, scheme):
    settings = loaded(tmp_path, f'provider = "{provider}"\nsecret = "{SECRET}"\n')
    verifier = Verifier(source_spec(settings, "suno"))
    made = signed_request(named, SECRET, callback("t1", "text"), timestamp=time.time(), **scheme)
    query = made.url.partition("?")[2]
    headers = dict(made.headers) | {"x-delivery-id": "d1"}
    request = Request(
        method="POST", url=made.url, path="/in/suno", query=query, headers=headers, body=made.body, client="192.0.2.1"
    )
    verdict = verifier.verify(request, time.time())
    assert isinstance(verdict, Verified), verdict
    assert (verdict.grade, verdict.dedup_key) == (grade, "d1")


def test_unsigned_callbacks_are_accepted_only_if_configured(tmp_path):
    source = loaded(tmp_path, 'provider = "unsigned"\n').sources["suno"]
    assert (source.provider, source.unsigned, source.secrets) == ("suno", True, ())
    assert 'provider = "unsigned"' in refusal(tmp_path, 'provider = "suno"\n')


def test_the_source_is_inline_with_a_202_fallback(tmp_path):
    source = loaded(tmp_path, f'secret = "{SECRET}"\n').sources["suno"]
    assert (source.mode, source.fallback_status, source.paths) == ("inline", 202, PATHS)
    assert json.loads(source.fallback_body) == {"ok": True, "status": "accepted"}


def test_keys_of_the_source_win(tmp_path):
    told = (
        f'secret = "{SECRET}"\nprovider = "hmac"\npath = "/hooks/suno"\nsource = {{ header = "X-Sig", rate = 5.0 }}\n'
    )
    source = loaded(tmp_path, told).sources["suno"]
    assert (source.header, source.rate, source.paths) == ("X-Sig", 5.0, ("/hooks/suno",))


@pytest.mark.parametrize(
    ("music", "words"),
    [
        ("", "secret"),
        (f'secret = "{SECRET}"\npath = "suno"\n', "path"),
        (f'secret = "{SECRET}"\npath = "/a b"\n', "path"),
        (f'secret = "{SECRET}"\npath = "/a?b"\n', "path"),
        (f'secret = "{SECRET}"\nprovider = "tilda"\n', "provider"),
        (f'secret = "{SECRET}"\nmax_audios = 1\n', "max_audios"),
        (f'secret = "{SECRET}"\nreply_within_s = 20\n', "reply_within_s"),
        (f'secret = "{SECRET}"\n[music.storage]\nkind = "s3"\n', "endpoint"),
        (f'secret = "{SECRET}"\n[music.storage]\nkind = "s3"\nendpoint = "s3.example.com"\nbucket = "b"\nkey_id = "a"\nsecret_key = "b"\n', "endpoint"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_by_name(tmp_path, music, words):
    told = refusal(tmp_path, music)
    assert words in told
    assert SECRET not in told


def test_the_sample_configuration_loads_as_it_is(monkeypatch):
    import boathook_music

    monkeypatch.setenv("SUNO_WEBHOOK_KEY", SECRET)
    file = Path(boathook_music.__file__).with_name("boathook.toml")
    settings, apps = with_apps(load(file))
    assert [app.name for app in apps] == ["music"]
    assert settings.sources["suno"].provider == "suno"
