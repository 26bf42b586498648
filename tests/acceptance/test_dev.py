"""`boathook dev`: one line for each event, a restart on each save, and no end at an error in a file."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.acceptance.conftest import SECRET, free_port, payload, signed
from tests.commands import boathook_command
from tests.support import until

HOOKS = """
from boathook import Boathook, Event

hook = Boathook()

@hook.on("stripe", "good")
async def good(event: Event) -> None:
    print("printed by the handler")

@hook.on("stripe", "bad")
async def bad(event: Event) -> None:
    event.json["customer"]
"""
SETTINGS = """
[database]
url = "{url}"
[server]
bind = "127.0.0.1:9"
data_dir = "data"
app = "hooks:hook"
[sources.stripe]
secrets = ["env:DEV_SECRET"]
[sources.github]
secrets = ["a secret of github that is long"]
"""


class Developer:
    """A running `boathook dev` in a folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        (folder / "hooks.py").write_text(HOOKS)
        (folder / "boathook.toml").write_text(SETTINGS.format(url=url))
        (folder / ".env").write_text(f"DEV_SECRET={SECRET}\n")
        with (folder / "dev.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "boathook", "dev", "--port", str(self.port)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wait_for("ready after")

    def text(self) -> str:
        return (self.folder / "dev.log").read_text()

    def wait_for(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Wait for a matching line in the output after a position."""

        def find() -> list[re.Match[str]]:
            assert self.process.poll() is None, self.text()
            return list(re.finditer(pattern, self.text()[after:]))

        try:
            return until(find, timeout=120)[0]
        except AssertionError as error:
            raise AssertionError(f"{pattern} is not in:\n{self.text()}") from error

    def send(self, type: str, *, secret: str = SECRET) -> None:
        body, headers = signed(payload(f"evt_{free_port()}_{type}", type), secret=secret)
        httpx.post(f"{self.base}/in/stripe", content=body, headers=headers, timeout=300)

    def save(self, name: str, old: str, new: str) -> int:
        """Replace a text in a file; return how much had been printed before."""
        printed = len(self.text())
        text = (self.folder / name).read_text()
        assert old in text
        (self.folder / name).write_text(text.replace(old, new))
        return printed


@pytest.fixture(scope="module")
def developer(tmp_path_factory: pytest.TempPathFactory, shared_url: str) -> Iterator[Developer]:
    running = Developer(tmp_path_factory.mktemp("dev"), shared_url)
    yield running
    running.process.terminate()
    running.process.wait(60)


@pytest.mark.extended("starts several servers of its own")
def test_each_event_is_one_line(developer: Developer):
    developer.send("good")
    developer.wait_for(r"(?m)^\d\d:\d\d:\d\d stripe good -> good  ok  [\d.]+ ms$")
    developer.wait_for("(?m)^printed by the handler$")
    developer.send("good", secret="whsec_another")
    developer.wait_for(r"stripe  refused  401  [\d.]+ ms  the signature does not match")
    assert "accepted" not in developer.text()


def test_trigger_finds_the_server_on_another_port_than_the_settings_say(developer: Developer):
    done = boathook_command("trigger", "stripe", "good", cwd=developer.folder, env=dict(os.environ), timeout=300)
    assert done.returncode == 0, done.stderr
    done = boathook_command("sources", "test", "github", cwd=developer.folder, env=dict(os.environ), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_failure_shows_file_and_line(developer: Developer):
    developer.send("bad")
    developer.wait_for(r"stripe bad -> bad  failed  [\d.]+ ms  again in [\d.]+ s  KeyError: 'customer'\n    Traceback")
    number = HOOKS.splitlines().index('    event.json["customer"]') + 1
    developer.wait_for(rf'File ".*/hooks.py", line {number}, in bad')


def test_sources_and_events_without_a_handler_are_reported(developer: Developer):
    developer.wait_for(r'source   .*/in/github has no handler; add @hook.on\("github"\)')
    developer.wait_for(r"source   .*/in/stripe -> bad good")
    developer.send("other")
    developer.wait_for(r"stripe other -> no handler  stored")
    developer.wait_for(r'add @hook.on\("stripe", "other"\)')


def test_a_request_at_a_wrong_path_is_reported_with_the_right_ones(developer: Developer):
    httpx.post(f"{developer.base}/in/strip", content=b"{}", timeout=300)
    developer.wait_for(
        r"POST /in/strip  refused  404  no source has this path; did you mean /in/stripe\n    sources are at /in/\w+ /in/\w+"
    )
    httpx.post(f"{developer.base}/api/v1/nothing", content=b"{}", timeout=300)
    httpx.get(f"{developer.base}/favicon.ico", timeout=300)
    developer.send("good")
    developer.wait_for("stripe good -> good  ok")
    assert developer.text().count("no source has this path") == 1


def test_a_save_restarts_and_an_error_waits_for_the_next_one(developer: Developer):
    printed = developer.save("hooks.py", '"good")\n', '"good")  (\n')
    developer.wait_for(r"hooks.py saved; restarting", printed)
    number = HOOKS.splitlines().index('@hook.on("stripe", "good")') + 1
    developer.wait_for(rf"SyntaxError: .*hooks.py, line {number}\)\n.*; waiting for a save", printed)
    printed = developer.save("hooks.py", '"good")  (\n', '"better")\n')
    developer.wait_for(r"ready after", printed)
    developer.send("better")
    developer.wait_for(r"stripe better -> good  ok", printed)


@pytest.mark.extended("starts several servers of its own")
def test_settings_and_variables_count_after_a_save(developer: Developer):
    printed = developer.save(".env", SECRET, "whsec_the_next_one")
    developer.wait_for(r"\.env saved; restarting", printed)
    developer.wait_for(r"ready after", printed)
    developer.send("bad", secret="whsec_the_next_one")
    developer.wait_for(r"stripe bad -> bad  failed", printed)
    printed = developer.save("boathook.toml", "[sources.github]", "[sources.github]\nsecretz = 1")
    developer.wait_for(r"boathook.toml: sources.github.secretz is not a setting.*\n.*; waiting for a save", printed)
    printed = developer.save("boathook.toml", "\nsecretz = 1", "")
    developer.wait_for(r"ready after", printed)


def test_the_link_signs_in_once_and_root_leads_to_the_console(developer: Developer):
    link = developer.wait_for(r"console  (\S+)")[1]
    with httpx.Client(follow_redirects=True, timeout=300) as browser:
        assert browser.get(link).url.path == "/console"
        page = browser.get(developer.base, headers={"accept": "text/html"})
        assert (page.status_code, page.url.path) == (200, "/console")
    assert httpx.get(link, timeout=300).status_code == 403


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
def test_a_killed_one_leaves_nothing_running(developer: Developer):
    processes = psutil.Process(developer.process.pid).children(recursive=True)
    assert processes
    developer.process.kill()
    assert psutil.wait_procs(processes, timeout=120)[1] == []


@pytest.mark.extended("starts several servers of its own")
def test_stopping_leaves_no_processes_or_files(tmp_path: Path, pg_url: str):
    running = Developer(tmp_path, pg_url)
    processes = psutil.Process(running.process.pid).children(recursive=True)
    assert processes
    assert list((tmp_path / "data/sign-in").iterdir())
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(60) == 0
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    assert not (tmp_path / "data/sign-in").exists()


def test_without_settings_the_command_that_writes_them_is_named(tmp_path: Path, pg_url: str):
    log = tmp_path / "dev.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "boathook", "dev", "--port", str(free_port())],
            cwd=tmp_path, env={**os.environ, "BOATHOOK_DATABASE_URL": pg_url}, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            until(lambda: "there is no boathook.toml; `boathook init` writes one" in log.read_text(), timeout=120)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
