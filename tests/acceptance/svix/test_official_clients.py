"""The official clients of five languages go through one scenario with every method they have, on a running server."""

import os
from collections import Counter

import httpx
import pytest

from tests.acceptance.svix import scenario
from tests.acceptance.svix.official_clients import PROGRAMS, Client, Play, Recorder, agrees, holds, methods_in_crate
from tests.acceptance.svix.scenario import METHODS, NO_CLIENT_CALLS, STEPS, Step
from tests.acceptance.svix.server import unique_name


@pytest.fixture
def play(request, server, receiver):
    """One client's program with the fixtures of the scenario."""
    command = PROGRAMS[request.param]()
    recorder = Recorder(server.base)
    client = None
    try:
        client = Client(command, recorder.base)
        yield Play(request.param, client, recorder, server.make_key(f"official-{unique_name()}"), receiver)
    finally:
        if client is not None:
            client.close()
        recorder.close()


@pytest.mark.extended("drives one more vendor's client through the whole API")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("play", PROGRAMS, indirect=True)
def test_an_official_client_gets_what_it_expects_from_every_method(play):
    assert set(play.client.names) - set(METHODS) == set(), "methods that the scenario does not know"
    for step in STEPS:
        play.take(step)
    assert set(play.client.names) - play.called == set(), "methods that no step calls"
    judge_receivers(play)


def judge_receivers(play):
    """Check that messages are signed with both the previous and the current key."""
    first = next(one for one in play.good.received if one.header("x-shop") == "two")
    assert first.header("authorization") == "Bearer k"
    assert first.is_signed_by(play.kept["former"])
    assert first.is_signed_by(play.kept["secret"])
    told = play.ops.wait()[0]
    assert told.is_signed_by(play.kept["ops_key"])
    assert told.json["data"]["endpointUid"] == "announced"


@pytest.mark.extended("drives one more vendor's client through the whole API")
@pytest.mark.timeout(3_600)
def test_the_rust_program_has_every_method_of_its_client():
    """It lists them one by one, as Rust cannot; the other programs ask their client."""
    command = PROGRAMS["Rust"]()
    client = Client(command, "http://127.0.0.1:9")
    client.close()
    assert Counter(name.rpartition(".")[2] for name in client.offered) == methods_in_crate()


class TestALanguageThatIsMissing:
    @pytest.mark.parametrize(("language", "program"), [("Go", "go"), ("Java", "javac"), ("Rust", "cargo")])
    def test_is_skipped_with_its_reason(self, language, program, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(pytest.skip.Exception, match=f"needs {program}, which is not installed"):
            PROGRAMS[language]()

    def test_is_skipped_if_it_is_too_old(self, monkeypatch, tmp_path):
        (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
        (tmp_path / "go").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(pytest.skip.Exception, match=r"needs go 1\.21, not go version go1\.19\.8"):
            PROGRAMS["Go"]()


class TestTheScenario:
    def test_calls_every_method(self):
        assert {step.method for step in STEPS} == set(METHODS)

    def test_covers_every_success_status(self):
        wanted = {(one.name, status) for one in METHODS.values() for status in one.status}
        usual = {(step.method, METHODS[step.method].status[0]) for step in STEPS if step.status is None}
        told = {(step.method, step.status) for step in STEPS if step.status}
        # It depends on the client, so no step can tell.
        assert wanted - usual - told == {("endpoint.rotate_secret", 204)}

    def test_reads_every_response(self):
        looked = {step.method for step in STEPS if (step.value or step.keep) and (step.status or 200) < 400}
        unread = {one.name for one in METHODS.values() if one.is_served and one.status[0] != 204} - looked
        # The one is empty, and not every client shows the other.
        assert unread == {"message_attempt.resend", "endpoint.rotate_secret"}

    def test_covers_every_operation_of_the_openapi_document(self):
        from boathook.api.app import openapi_document

        document = openapi_document()
        served = {f"{verb.upper()} {path}" for path, methods in document["paths"].items() for verb in methods}
        called = {f"{one.verb} {one.path}" for one in METHODS.values() if one.is_served}
        assert called | set(NO_CLIENT_CALLS) == served

    def test_gives_a_reason_for_every_unserved_method(self):
        assert [one.name for one in METHODS.values() if not (one.is_served or one.why)] == []
        assert set(scenario.DIFFERENCES) <= {one.name for one in METHODS.values() if one.is_served}
        assert set(scenario.BODIES) <= {one.name for one in METHODS.values() if not one.is_served}

    def test_knows_the_names_of_both_generations(self):
        assert [name for name in METHODS if scenario.current_name(name) != name] == []


class TestMutants:
    """Wrong responses that the scenario must detect."""

    CREATE = Step("application.create", body={"name": "Shop"}, value={"name": "Shop"})

    @pytest.mark.extended("the mutant of a test that is left out")
    @pytest.mark.parametrize("play", ["Python"], indirect=True)
    @pytest.mark.parametrize(
        ("status", "change", "seen"),
        [
            (201, {"createdAt": None}, "the client failed"),
            (201, {"name": "Ship"}, "the client read"),
            (201, {"throttleRate": "many"}, "the client failed"),
            (200, {}, "boathook answered 200"),
            (404, {}, "boathook answered 404"),
        ],
    )
    def test_a_wrong_response_is_detected(self, play, status, change, seen):
        play.recorder.tamper = lambda answer: httpx.Response(status, json=answer.json() | change)
        with pytest.raises(AssertionError, match=seen):
            play.take(self.CREATE)

    @pytest.mark.extended("the mutant of a test that is left out")
    @pytest.mark.parametrize("play", ["Python"], indirect=True)
    def test_an_error_without_json_is_detected(self, play):
        play.recorder.tamper = lambda _: httpx.Response(404, text="not found")
        with pytest.raises(AssertionError, match="the answer is text/plain"):
            play.take(next(step for step in STEPS if step.method == "connector.list"))

    def test_fields_a_client_invents_or_loses_are_detected(self):
        sent = {"id": "a", "at": "2026-01-31T12:00:00.123456Z", "rows": [{"n": 1}]}
        assert agrees({"id": "a", "at": "2026-01-31T12:00:00.123Z", "more": None}, sent)
        wrong: list[dict[str, object]] = [
            {"id": "b"},
            {"more": 1},
            {"rows": []},
            {"rows": [{"n": 2}]},
            {"at": "2026-01-31T12:00:01Z"},
        ]
        assert [read for read in wrong if agrees(read, sent)] == []
        assert not holds({"rows": [1]}, {"rows": []})
        assert not holds({}, {"id": "a"})
