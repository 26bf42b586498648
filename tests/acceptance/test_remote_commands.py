"""Each command of the catalogue does the same on the database and against a real server: texts, JSON, exit codes."""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import typer

from boathook import cli
from boathook.cli.commands import COMMAND_ENTRIES
from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.acceptance.raw_http import rows
from tests.commands import boathook_command
from tests.support import sampled, until

NO_DELIVERY: Final = "dlv_01h455vb4pex5vsknk084sn02q4_0"
NO_EVENT: Final = "evt_01h455vb4pex5vsknk084sn02q4"
NO_TOKEN: Final = "otk_01h455vb4pex5vsknk084sn02q4"
NO_JOB: Final = "qtask_01h455vb4pex5vsknk084sn02q4"
NO_SILENCE: Final = "sil_01h455vb4pex5vsknk084sn02q4"
UNKNOWN: Final = "key_01h455vb4pex5vsknk084sn02q4"
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith("BOATHOOK_")}
LISTS: Final[tuple[list[str], ...]] = (
    [],
    ["--json"],
    ["--limit", "1"],
    ["--limit", "0", "--json"],
    ["--after", "nonsense"],
)
KEYS: Final[tuple[list[str], ...]] = (
    ["--organization", "nobody"],
    ["--portal"],
    ["--after", "{key}", "--json"],
    ["--limit", "-1"],
)
NO_REJECTION: Final = "rej_01h455vb4pex5vsknk084sn02q4"
NO_CONFLICT: Final = "cfl_01h455vb4pex5vsknk084sn02q4"
MATRIX: Final[dict[str, tuple[list[str], ...]]] = {
    "alerts silence": (
        ["--note", "a move"],
        ["--rule", "error_rate", "--subject", "handler:crm", "--for", "2h", "--note", "a move", "--json"],
        ["--rule", "nothing", "--note", "a move"],
        ["--rule", "", "--note", "a move"],
        ["--for", "999d", "--note", "a move"],
        [],
        ["--end", NO_SILENCE],
        ["--end", "nonsense"],
    ),
    "alerts test": (["nobody"], []),
    "alerts silences": (*LISTS, ["--ended"], ["--after", NO_SILENCE]),
    "applications expunge": (
        ["acme", "order-17", "--yes"],
        ["acme", "order-17", "--yes", "--json"],
        ["acme", "--all", "--dry-run"],
        ["acme", "order-17"],
        ["acme", "order-17", "--all", "--yes"],
        ["acme", "--yes"],
        ["nobody", "--all", "--dry-run"],
        [],
    ),
    "applications create": (
        ["Acme", "--uid", "{new uid}", "--rate", "5", "--metadata", "plan=pro", "--json"],
        ["Acme"],
        ["Acme", "--uid", "{uid}"],
        ["Acme", "--uid", "a b"],
        ["Acme", "--rate", "0"],
        ["Acme", "--metadata", "plan"],
        ["", "--json"],
        [],
    ),
    "applications list": (["--limit", "1", "--json"], ["--limit", "1"], ["--after", "app_!"]),
    "applications show": (["{app}"], ["{uid}", "--json"], ["nobody"], ["a b"], []),
    "applications update": (
        ["{uid}", "--name", "Acme Corporation", "--rate", "0"],
        ["{app}", "--metadata", "plan=free", "--uid", "", "--json"],
        ["{app}", "--name", ""],
        ["{app}"],
        ["nobody", "--rate", "5"],
    ),
    "applications delete": (["{uid}", "--yes"], ["{app}", "-y", "--json"], ["{app}"], ["nobody", "--yes"]),
    "conflicts accept": (
        [NO_CONFLICT],
        ["nonsense"],
        ["--all", "--dry-run"],
        ["--all", "--dry-run", "--json"],
        ["--source", "nothing", "--yes"],
        ["--differs", "everything"],
        [NO_CONFLICT, "--all"],
        [],
    ),
    "rejections reverify": (
        [NO_REJECTION],
        ["nonsense"],
        ["--all", "--dry-run"],
        ["--all", "--dry-run", "--json"],
        ["--source", "nothing"],
        [NO_REJECTION, "--all"],
        [],
    ),
    "sources add": (
        ["{new}", "--provider", "github", "--generate-secret"],
        ["{new}", "--provider", "github", "--generate-secret", "--rate", "5", "--paths", "/hooks/{new}", "--json"],
        ["{new}", "--provider", "github", "--generate-secret", "--rate", "many"],
        ["{new}", "--provider", "github", "--rate", "5", "--set", "rate=5"],
    ),
    "sources change": (["{source}", "--rate", "5"], ["{source}", "--unset", "rate", "--json"], ["{source}"]),
    "sources remove": (["{source}", "--yes"], ["{source}", "--yes", "--json"], ["{source}"]),
    "sources secret": (["{source}"], ["{source}", "--forget"], ["nothing"]),
    "sources secrets list": (["{source}"], ["{source}", "--json"], ["nothing"]),
    "sources secrets add": (
        ["{source}"],
        ["{source}", "--expire-others", "24h", "--note", "rotation", "--json"],
        ["{source}", "--expire-others", "60d"],
        ["nothing"],
    ),
    "sources secrets expire": (
        ["{source}", "{secret}"],
        ["{source}", "{secret}", "--after", "24h", "--json"],
        ["{source}", "{secret}", "--after", "60d"],
    ),
    "sources secrets keep": (["{source}", "{secret}"], ["{source}", "{secret}", "--json"]),
    "sources secrets remove": (["{source}", "{secret}"], ["{source}", "{secret}", "--json"], ["{source}", "nonsense"]),
    "dead replay": (
        ["{dead}"],
        ["{dead}", "--json"],
        ["{dead}", "--dry-run"],
        ["--type", "{type}", "--yes"],
        ["--type", "{type}", "--yes", "--json", "--rate", "100", "--note", "mended"],
        ["--type", "{type}", "--dry-run"],
        ["--type", "{type}"],
        ["--type", "nothing", "--yes"],
        ["--group", "grp_01h455vb4pex5vsknk084sn02q4", "--yes"],
        [NO_DELIVERY],
        ["nonsense"],
        ["{dead}", "--all"],
        ["--type", "{type}", "--since", "yesterday"],
        ["--all", "--yes", "--rate", "-1"],
        [],
    ),
    "dead ignore": (
        ["{dead}", "--note", "refunded"],
        ["{dead}"],
        ["{dead}", "--note", " "],
        ["--type", "{type}", "--note", "refunded", "--yes"],
    ),
    "dead purge": (["{dead}"], ["--type", "{type}", "--yes", "--json"], ["--type", "{type}"]),
    "deliveries replay": (["{dead}"], ["{dead}", "--json", "--note", "again"], [NO_DELIVERY], ["nonsense"], []),
    "events wake": (["{event}"], [NO_EVENT], ["nonsense"]),
    "deliveries retry": (["{dead}"], ["{dead}", "--json"], [NO_DELIVERY], ["nonsense"]),
    "events replay": (
        ["{event}"],
        ["{event}", "--json"],
        ["{event}", "--dry-run"],
        ["--type", "{type}", "--yes"],
        ["--type", "{type}", "--yes", "--json", "--rate", "100", "--note", "mended"],
        ["--type", "{type}", "--state", "dead", "--dry-run", "--json"],
        ["--type", "{type}", "--search", "broken", "--yes"],
        ["--type", "{type}", "--run", "once", "--yes", "--json"],
        ["--type", "{type}"],
        ["--type", "nothing", "--yes"],
        ["--type", "{type}", "--route", "--dry-run"],
        ["--type", "{type}", "--route", "--to", "nobody", "--yes"],
        ["--type", "{type}", "--to", "nobody"],
        [NO_EVENT],
        ["nonsense"],
        ["{event}", "--all"],
        ["--where", "customer", "--yes"],
        ["--state", "asleep", "--yes"],
        ["--unhandled", "--state", "dead"],
        ["--type", "{type}", "--since", "1h", "--until", "2h", "--yes"],
        [],
    ),
    "events route": (
        ["{event}"],
        ["{event}", "--dry-run", "--json"],
        ["--type", "{type}", "--yes"],
        ["--type", "{type}", "--dry-run"],
        ["--type", "{type}", "--to", "nobody", "--yes"],
        ["--unhandled", "--type", "{type}", "--yes", "--json"],
        ["--type", "{type}"],
    ),
    "endpoints recover": (["acme", "nobody", "--since", "2h"], ["nobody", "crm", "--since", "2h"], ["acme", "crm"]),
    "endpoints replay-missing": (["acme", "nobody", "--since", "2h"], ["acme", "crm", "--since", "soon"]),
    "endpoints resend": (["acme", "nobody", "--since", "2h"], ["acme", "nobody", "--since", "2h", "--status", "9"]),
    "jobs list": (*LISTS, ["--after", NO_JOB]),
    "jobs show": ([NO_JOB], ["nonsense"], []),
    "jobs stop": ([NO_JOB], ["nonsense"]),
    "endpoints create": (
        ["-a", "{uid}", "--url", "http://127.0.0.1:8099/"],
        [
            "-a",
            "{app}",
            "--url",
            "http://127.0.0.1:8099/",
            "--uid",
            "box",
            "--rate",
            "5",
            "--channel",
            "eu",
            "--retry",
            "5, 60",
            "--timeout",
            "20",
            "--header",
            "X-Team: b",
            "--metadata",
            "plan=pro",
            "--json",
        ],
        ["-a", "{uid}", "--url", "http://127.0.0.1:8099/", "--retry", "svix", "--ed25519", "--disabled", "--json"],
        ["-a", "{uid}", "--url", "http://127.0.0.1:8099/", "--concurrency", "5000"],
        ["-a", "{uid}", "--url", "http://127.0.0.1:8099/", "--uid", "crm"],
        ["-a", "{uid}", "--url", "http://127.0.0.1:8099/", "--type", "no.such"],
        ["-a", "{uid}", "--url", "http://127.0.0.1:8099/", "--header", "Host: b"],
        ["-a", "{uid}", "--url", ""],
        ["-a", "nobody", "--url", "http://127.0.0.1:8099/"],
        ["--url", "http://127.0.0.1:8099/"],
    ),
    "endpoints update": (
        ["-a", "{uid}", "{ep}", "--rate", "5"],
        ["-a", "{app}", "crm", "--rate", "0", "--uid", "", "--description", "new", "--json"],
        ["-a", "{uid}", "{ep}", "--timeout", "3000"],
        ["-a", "{uid}", "nothing", "--rate", "5"],
        ["-a", "nobody", "{ep}", "--rate", "5"],
        ["-a", "{uid}", "{ep}"],
    ),
    "endpoints delete": (
        ["-a", "{uid}", "{ep}", "--yes"],
        ["-a", "{app}", "crm", "-y", "--json"],
        ["-a", "{uid}", "{ep}"],
        ["-a", "{uid}", "nothing", "-y"],
    ),
    "endpoints disable": (
        ["-a", "{uid}", "{ep}"],
        ["-a", "{app}", "crm", "--json"],
        ["-a", "{uid}", "nothing"],
        ["-a", "nobody", "{ep}"],
        ["{ep}"],
    ),
    "endpoints enable": (
        ["-a", "{uid}", "{ep}"],
        ["-a", "{app}", "crm", "--json"],
        ["-a", "{uid}", "nothing"],
        ["-a", "nobody", "{ep}"],
        ["{ep}"],
        ["-a", "{uid}", "{ep}", "--backlog", "cancel"],
    ),
    "endpoints resend-message": (
        ["-a", "{uid}", "{ep}", "--message", "nothing"],
        ["-a", "{uid}", "nothing", "--message", "m"],
        ["{ep}"],
    ),
    "endpoints resume": (
        ["-a", "{uid}", "{ep}"],
        ["-a", "{app}", "crm", "--json"],
        ["-a", "{uid}", "nothing"],
        ["-a", "nobody", "{ep}"],
        ["{ep}"],
    ),
    "endpoints rotate-secret": (
        ["-a", "{uid}", "{ep}"],
        ["-a", "{uid}", "{ep}", "--ed25519", "--grace", "0", "--json"],
        ["-a", "{uid}", "{ep}", "--grace", "-1"],
        ["-a", "{uid}", "{ep}", "--secret", "env:NOTHING"],
        ["-a", "{uid}", "nothing"],
    ),
    "endpoints test": (
        ["-a", "{uid}", "{ep}"],
        ["-a", "{app}", "crm", "--json"],
        ["-a", "{uid}", "nothing"],
        ["-a", "nobody", "{ep}"],
        ["{ep}"],
        ["-a", "{uid}", "{ep}", "--type", "no.such"],
    ),
    "event-types create": (
        ["{new type}", "--description", "An invoice was paid", "--group", "invoices", "--flag", "beta"],
        ["{new type}", "--schema", '{"type": "object"}', "--version", "2", "--json"],
        ["{own type}"],
        ["a b"],
        ["{new type}", "--schema", "{"],
        ["{new type}", "--schema", '{"type": 5}'],
        ["{new type}", "--description", "x" * 4_097],
        [],
    ),
    "event-types list": (
        ["--all"],
        ["--all", "--json"],
        ["--limit", "1", "--json"],
        ["--after", "a b"],
        ["--no-schemas"],
    ),
    "event-types show": (["{own type}"], ["{own type}", "--json"], ["nothing"], ["a b"]),
    "event-types update": (
        ["{own type}", "--description", "new", "--deprecated"],
        ["{own type}", "--schema", "", "--no-archived", "--json"],
        ["{own type}", "--group", "", "--flag", ""],
        ["{own type}"],
        ["nothing", "--deprecated"],
    ),
    "event-types archive": (["{own type}"], ["{own type}", "--json"], ["nothing"]),
    "event-types delete": (
        ["{own type}", "--yes"],
        ["{own type}", "--yes", "--json"],
        ["{own type}"],
        ["nothing", "-y"],
    ),
    "event-types import-openapi": (
        ["{document}", "--dry-run"],
        ["{document}", "--json"],
        ["{document}", "--replace-all", "--dry-run", "--json"],
        ["/dev/null"],
        ["nothing.json"],
    ),
    "keys create": (
        ["--scope", "organization", "--name", "backend"],
        ["--scope", "organization", "--expires", "30d", "--json"],
        ["--scope", "application", "--application", "acme", "--json"],
        ["--scope", "mount", "--mount", "/api/yard", "--role", "reader", "--json"],
        ["--scope", "application"],
        ["--scope", "application", "--application", "nobody"],
        ["--scope", "organization", "--mount", "/x"],
        ["--scope", "mount", "--mount", "x", "--role", "reader"],
        ["--scope", "organization", "--name", ""],
        ["--scope", "organization", "--expires", "soon"],
        ["--scope", "everything"],
        [],
    ),
    "keys list": (*LISTS, *KEYS),
    "keys show": (["{key}"], ["{key}", "--json"], [UNKNOWN], ["nonsense"], ["key_!"], []),
    "keys revoke": (["{key}"], ["{key}", "--json"], [UNKNOWN], ["nonsense"]),
    "operators list": ([], ["--json"]),
    "operators disable": (["nobody"], ["anna"], []),
    "operators delete": (["nobody"], ["anna"]),
    "operators tokens list": (["anna"], ["anna", "--json"], ["nobody"], ["anna", "--limit", "1"]),
    "operators tokens revoke": ([NO_TOKEN], ["nonsense"]),
}
"""The command lines of each command.

``{key}`` is a new key, ``{dead}`` one of two new dead letters with ``{type}``, ``{event}`` its event, ``{source}`` a new source with ``{secret}``
as its second secret, and ``{new}`` the name of none.
"""
ALLOW: Final = '\n[outbound]\nallow = ["127.0.0.0/8"]\n'
READING: Final = {
    "alerts silences", "jobs list", "keys list", "keys show", "operators list", "operators tokens list",
    "event-types list", "event-types show", "applications list", "applications show",
}  # fmt: skip
"""Commands that change nothing, so both ways show the same objects."""
ON_HOST: Final = (
    ["serve"], ["migrate"], ["check"], ["spool", "status"], ["operators", "role", "anna", "viewer"], ["events", "list"], ["listen"],
    ["operators", "tokens", "create", "anna", "--name", "ci"],
)  # fmt: skip


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    process = shared_boathook(roles="gateway,worker,keeper,console", extra=ALLOW)
    until(lambda: httpx.get(f"{process.base}/api/v1/health/ping").status_code == 204)
    process.cli("applications", "create", "Acme", "--uid", "acme")
    process.cli("operators", "create", "anna", "--role", "admin", "--no-password")
    process.cli("keys", "create", "--scope", "organization", "--name", "listed")
    process.cli("event-types", "create", "listed.type", "--description", "In lists")
    return process


@pytest.fixture(scope="module")
def token(running: BoathookProcess) -> str:
    return running.cli("operators", "tokens", "create", "anna", "--name", "laptop").stdout.strip()


@pytest.fixture(scope="module")
def api(running: BoathookProcess, token: str) -> Iterator[httpx.Client]:
    """A client that makes what command lines are about; a command for each object would take most of the time."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{running.base}/api/v1", headers=headers, timeout=300) as client:
        yield client


def create(api: httpx.Client, path: str, **fields: object) -> Any:
    """Create an object through the API and return it."""
    answer = api.post(path, json=fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def remotely(running: BoathookProcess, token: str, tmp_path: Path) -> Run:
    """Run a command against the server, in a folder without a configuration."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        more = {"BOATHOOK_SERVER": running.base, "BOATHOOK_API_KEY": token, **environment}
        return boathook_command(*arguments, cwd=tmp_path, env={**ENVIRONMENT, **more})

    return run


def derived_commands() -> Iterator[str]:
    """Yield the commands that run against a server, by walking the whole tree of commands."""
    root: Any = typer.main.get_command(cli.app)

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[str]:
        for name in getattr(command, "commands", ()):
            yield from walk(command.commands[name], (*words, name))
        if getattr(command.callback, "runs_remotely", False):
            yield " ".join(words)

    for name in COMMAND_ENTRIES:
        yield from walk(root.commands[name], (name,))


def test_the_matrix_has_each_derived_command():
    assert sorted(MATRIX) == sorted(derived_commands())


def plain(text: str) -> str:
    """Return an output with the ids, tokens and times of a run replaced; ids by their order."""
    names = itertools.count()
    known: dict[str, str] = {}
    text = re.sub(r"(broken|own|new)\.t\d+", "TYPE", text)
    text = re.sub(r"\b[0-9a-f]{48}\b", "SECRET", re.sub(r"\bsource-s\d+\b", "SOURCE", text))
    text = re.sub(r"(SOURCE, )+", "SOURCES, ", text)  # there are more at the second run
    text = re.sub(
        r"(key|evt|dlv|sil|ssec|qtask|app|ep|msg)_[0-9a-z]{27}",
        lambda key: known.setdefault(key[0], f"key {next(names)}"),
        text,
    )
    text = re.sub(r"cli:\w+|operator:anna/otk_\w{27}", "ACTOR", text)
    text = re.sub(r"(whsec|whpk)_[\w+/=]+", "SECRET", text)
    text = re.sub(r"bhk_[\w-]{43}", "TOKEN", text)
    text = re.sub(r"20\d\d-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)", "TIME", text)
    return re.sub(r" +", " ", re.sub(r"\b\d+[smh]\b", "AGE", text)).replace(" \n", "\n")


_types = itertools.count()


def new_dead_letters(running: BoathookProcess) -> dict[str, str]:
    """Let two events of a new type die; return their type, and the delivery of one."""
    kind = f"broken.t{next(_types)}"
    for number in range(2):
        body, headers = signed(payload(f"{kind}-{number}", kind))
        assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300).status_code == 200
    dead = "select 1 from boathook.delivery where state = 'dead' and event_id in (select id from boathook.event where type = %s)"
    until(lambda: len(rows(running, dead, kind)) == 2)
    row = running.listing("dead", "list", "--type", kind)[0]
    return {"{type}": kind, "{dead}": row["id"], "{event}": row["event_id"]}


def new_application(api: httpx.Client) -> dict[str, str]:
    """Create an application with an endpoint; return their ids, its uid, and one that no application has."""
    number = next(_types)
    uid = f"own.t{number}"
    created = create(api, "/app", name="Acme", uid=uid)
    endpoint = create(api, f"/app/{uid}/endpoint", url="http://127.0.0.1:8099/", uid="crm")
    return {"{app}": created["id"], "{uid}": uid, "{new uid}": f"new.t{number}", "{ep}": endpoint["id"]}


def new_source(running: BoathookProcess, api: httpx.Client) -> dict[str, str]:
    """Add a source with two secrets; return its name, the id of its newest secret, and a name that is not taken."""
    name, other = (f"source-s{next(_types)}" for _ in range(2))
    running.cli("sources", "add", name, "--provider", "github", "--generate-secret")
    return {"{source}": name, "{secret}": create(api, f"/source/{name}/secret")["id"], "{new}": other}


def fill(word: str, values: dict[str, str]) -> str:
    """Return a word of a command line with its placeholder filled in."""
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


def new_event_types(api: httpx.Client, folder: Path) -> dict[str, str]:
    """Create an event type; return its name, one that no event type has, and a document with such a one."""
    number = next(_types)
    create(api, "/event-type", name=f"own.t{number}", description="Its own", schemas={"1": {}})
    document = folder / f"{number}.json"
    document.write_text(json.dumps({"webhooks": {f"new.t{number}": {"post": {"summary": "From a document"}}}}))
    return {"{own type}": f"own.t{number}", "{new type}": f"new.t{number}", "{document}": str(document)}


def new_key(api: httpx.Client) -> dict[str, str]:
    """Create a key; return its id."""
    return {"{key}": create(api, "/key", scope="organization", name="matrix")["id"]}


PLACEHOLDER: Final = re.compile(r"\{[a-z ]+\}")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [line for command, lines in MATRIX.items() for line in sampled([(command, each) for each in lines], keep=1)],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "nothing",
)
def test_a_command_does_the_same_against_a_server(
    running: BoathookProcess,
    api: httpx.Client,
    remotely: Run,
    tmp_path: Path,
    command: str,
    arguments: list[str],
):
    placeholders = set(PLACEHOLDER.findall(" ".join(arguments)))
    factories: dict[frozenset[str], Callable[[], dict[str, str]]] = {
        frozenset({"{dead}", "{event}", "{type}"}): lambda: new_dead_letters(running),
        frozenset({"{source}", "{secret}", "{new}"}): lambda: new_source(running, api),
        frozenset({"{own type}", "{new type}", "{document}"}): lambda: new_event_types(api, tmp_path),
        frozenset({"{app}", "{uid}", "{new uid}", "{ep}"}): lambda: new_application(api),
        frozenset({"{key}"}): lambda: new_key(api),
    }

    def new_values() -> dict[str, str]:
        made = [factory() for names, factory in factories.items() if names & placeholders]
        return {name: value for values in made for name, value in values.items()}

    outputs, values = [], new_values()
    for number, run in enumerate((lambda *words: running.cli(*words, check=False), remotely)):
        if number and command not in READING:
            values = new_values()
        assert placeholders <= values.keys()
        result = run(*command.split(), *(fill(word, values) for word in arguments))
        assert "Traceback" not in result.stderr
        outputs.append((result.returncode, plain(result.stdout), plain(result.stderr)))
    assert outputs[0] == outputs[1]
    assert any(outputs[0][1:]) or command == "keys list"


def test_the_audit_names_the_operator_and_the_token(running: BoathookProcess, remotely: Run):
    created = json.loads(remotely("keys", "create", "--scope", "organization", "--json").stdout)
    import psycopg

    with psycopg.connect(running.database_url) as connection:
        row = connection.execute("select actor from boathook.audit where subject = %s", (created["id"],)).fetchone()
    assert row is not None
    assert re.fullmatch(r"operator:anna/otk_\w{27}", row[0])


@pytest.mark.parametrize("arguments", ON_HOST, ids=" ".join)
def test_other_commands_say_that_they_run_on_the_host(remotely: Run, arguments: list[str]):
    done = remotely(*arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"boathook: `boathook [\w ]+` runs on the host only; leave out --server .*\n", done.stderr)


@pytest.mark.parametrize("option", ["--follow", "--first"])
def test_an_option_that_needs_the_database_says_so(remotely: Run, option: str):
    done = remotely("dead", "replay", NO_DELIVERY, option)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option} needs the database" in done.stderr


def test_the_beginning_of_an_id_needs_the_database(remotely: Run):
    done = remotely("keys", "show", UNKNOWN[:-3])
    assert (done.returncode, done.stdout) == (2, "")
    assert "is the beginning of an id; a server takes whole ids" in done.stderr


def test_an_insufficient_or_wrong_key_is_an_error(running: BoathookProcess, remotely: Run):
    organization = running.cli("keys", "create", "--scope", "organization").stdout.strip()
    done = remotely("keys", "list", BOATHOOK_API_KEY=organization)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"boathook: {running.base}: ")
    done = remotely("keys", "list", "--api-key", "bho_wrong")
    assert (done.returncode, done.stderr) == (1, f"boathook: {running.base}: Invalid token\n")


def test_a_profile_has_a_server_and_its_key(running: BoathookProcess, token: str, tmp_path: Path):
    file = tmp_path / "boathook" / "profiles.toml"
    file.parent.mkdir()
    file.write_text(f'[profiles.prod]\nserver = "{running.base}"\napi_key = "file:{tmp_path}/key"\n')
    file.chmod(0o600)
    (tmp_path / "key").write_text(f"{token}\n")
    environment = {**ENVIRONMENT, "XDG_CONFIG_HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return boathook_command(*arguments, cwd=tmp_path, env=environment)

    assert run("--profile", "prod", "keys", "list").returncode == 0
    assert run("keys", "list", "--profile", "prod", "--json").returncode == 0
    assert "there is no profile test; there are: prod" in run("keys", "list", "--profile", "test").stderr
    file.chmod(0o640)
    assert "others could read its keys" in run("keys", "list", "--profile", "prod").stderr
