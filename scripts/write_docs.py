"""Writes the generated pages of docs/.

Each page comes from the one place where its facts are kept: `defaults.toml`, the command line's own definition, the
table of metrics, the recipes, the rules of the books, the API's own description, and the docstrings of the public
names. `make docs` runs this; a test compares the pages.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main

from boathook.admin.authorization import RULES, Permission
from boathook.cli import app
from boathook.config.sources import FIELDS
from boathook.inbound.places import Json, Place
from boathook.inbound.providers import RECIPES
from boathook.inbound.providers.recipe import Capture, Echo, Recipe, Say, SignText, Sure, Visit
from boathook.journal.rules import LINES, SEALS, WALKS, WHOLE, Rule
from boathook.telemetry.metrics import TABLE, Kind, Metric
from scripts import docs_http, docs_providers, docs_python, docs_svix

ROOT = Path(__file__).parents[1]
DEFAULTS = ROOT / "src/boathook/defaults.toml"
GENERATED = "<!-- Written by `make docs`; edit {origin} instead. -->"

SOURCE_KEYS = {
    "provider": (
        "The recipe that knows how the sender signs; the source's own name where absent. `boathook sources "
        "providers` lists all."
    ),
    "secrets": (
        'What the sender signs with, as a list of `"env:NAME"` or `"file:PATH"`; any of them may have signed,'
        " so that a secret can be rotated. `secret` takes a single one."
    ),
    "paths": 'Paths besides `/in/NAME` at which its requests arrive, such as `["/webhooks/stripe"]`.',
    "unsigned": "Accept requests without any proof. Only for senders that cannot sign.",
    "addresses": (
        'Networks requests may come from, such as `["203.0.113.0/24"]`, besides what the provider\'s proof demands.'
    ),
    "tolerance_s": (
        "Seconds by which a signed timestamp may differ from our clock, in both directions; the provider's "
        "own where absent."
    ),
    "max_body": "Largest request body in bytes; `limits.max_body` where absent.",
    "rate": "Requests a second; more are answered 429. Absent or 0: no limit.",
    "burst": "How many requests may come at once before `rate` holds them back.",
    "dedup_fields": "JSON paths whose values together name the event, where the sender gives it no id.",
    "dedup_days": "Days a dedup key is remembered; `retention.dedup_days` where absent.",
    "retry": "When handlers of its events that name no retry of their own run again; absent, `worker.retry`.",
    "public_url": (
        "The address this sender reaches us under, for providers that sign the URL; `server.public_url` where absent."
    ),
    "methods": 'HTTP methods taken, of `"GET"`, `"POST"` and `"PUT"`; the provider\'s own where absent.',
    "content_encodings": (
        'Content-Encodings decoded, of `"gzip"` and `"deflate"`; `limits.content_encodings` where absent.'
    ),
    "mode": (
        '`"store"` (as where absent) answers once the event is stored; `"inline"` waits for the handler and answers '
        "what it gave to `event.reply`."
    ),
    "reply_within_s": (
        'Seconds the sender is kept waiting with `mode = "inline"`; 70 % of what it allows where absent, or 2 where '
        "that is not known."
    ),
    "fallback_status": (
        "Status answered when the handler gave no reply in time; 200 where absent. Not a redirect, nor one that makes "
        "senders give up."
    ),
    "fallback_body": (
        "Body answered then; the reply the provider wants, or boathook's own, where the fallback is not set."
    ),
    "fallback_content_type": "Its media type; `text/plain; charset=utf-8` where absent.",
    "schema": (
        "What bodies must look like: a JSON Schema (draft 7), as the table `[sources.NAME.schema]` or as the path of "
        "its file, relative to the folder of `boathook.toml`; see [handlers](handlers.md#sources-with-a-schema)."
    ),
    "header": "`hmac`, `token`: the header that carries the signature or the token.",
    "algorithm": "`hmac`: the hash, such as `sha256`.",
    "encoding": "`hmac`: how the signature is written, `hex` or `base64`.",
    "prefix": "`hmac`: text in front of the signature, such as `sha256=`.",
    "template": "`hmac`: what is signed, such as `{timestamp}.{body}`.",
    "timestamp_header": "`hmac`: the header that carries the signed time.",
    "id_header": "`hmac`, `token`: the header that carries the event's id.",
    "id_path": "`hmac`, `token`: the dotted path to the event's id in a JSON body.",
    "type_header": "`hmac`, `token`: the header that carries the event's type.",
    "type_path": "`hmac`, `token`: the dotted path to the event's type in a JSON body.",
    "key_encoding": "`hmac`: how the secret is written, `text`, `hex` or `base64`.",
    "query": "`token`: the query parameter that carries the token.",
    "username": "`token`: the user name of basic authentication.",
    "password": 'The password of basic authentication, as `"env:NAME"` or `"file:PATH"`.',
}
"""What each key of a `[sources.NAME]` table does; the settings' model decides which keys there are."""

CONFIGURATION = """\
# Configuration

{generated}

Every setting has a default. `boathook.toml` in the working folder (or the file named with `--config`) overrides the
defaults, `BOATHOOK_*` environment variables override the file, and flags override everything. The variable of a key is
`BOATHOOK_` and the key in capitals with underscores for dots: `server.bind` is `BOATHOOK_SERVER_BIND`. Three have
short names besides: `BOATHOOK_DATABASE_URL`, `BOATHOOK_BIND` and `BOATHOOK_DATA_DIR`. A list in a variable is JSON or
separated by commas. An unknown key is refused, with the nearest known one.

Secrets are not written into the file: `"env:NAME"` reads an environment variable, `"file:PATH"` a file, relative to the
folder of `boathook.toml`.

`boathook config show` prints the settings in force. A table that is not listed here, such as `[billing]`, is kept for
the app that reads it.
"""

SOURCES = """
## `[sources.NAME]`

One table for each place where requests arrive; `NAME` is yours, and the requests come to `/in/NAME`. Keys marked `hmac`
or `token` complete those two generic providers. Other providers have settings of their own, which stand in the same
table.

```toml
[sources.stripe]
secrets = ["env:STRIPE_WEBHOOK_SECRET"]
paths = ["/webhooks/stripe"]

[sources.intranet]
provider = "hmac"
secrets = ["file:intranet.secret"]
header = "X-Signature"
algorithm = "sha256"
encoding = "hex"
id_header = "X-Event-Id"
rate = 50.0
```

| key | what it does |
|---|---|
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """Settings that share one comment in `defaults.toml`."""

    keys: tuple[str, ...]
    defaults: tuple[str, ...]
    text: str


def read_entries(toml: str) -> dict[str, list[Entry]]:
    """Return the entries of each table; a key without a comment of its own belongs to the entry above it."""
    tables: dict[str, list[Entry]] = {}
    table, comment = "", ""
    for line in toml.splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            table, comment = match[1], ""
            tables[table] = []
        elif line.startswith("# "):
            comment = f"{comment} {line[2:]}".strip()
        elif match := re.fullmatch(r"(\w+) = (.+)", line):
            if not comment:
                last = tables[table].pop()
                entry = Entry((*last.keys, match[1]), (*last.defaults, match[2]), last.text)
            else:
                entry = Entry((match[1],), (match[2],), comment)
            tables[table].append(entry)
            comment = ""
    return tables


def configuration() -> str:
    """Return the page on settings."""
    parts = [CONFIGURATION.format(generated=GENERATED.format(origin="src/boathook/defaults.toml"))]
    for table, entries in read_entries(DEFAULTS.read_text(encoding="utf-8")).items():
        parts.append(f"\n## `[{table}]`\n\n| key | default | what it does |\n|---|---|---|\n")
        parts += [
            f"| {_codes(f'{table}.{key}' for key in entry.keys)} | {_codes(entry.defaults)} | {_cell(entry.text)} |\n"
            for entry in entries
        ]
    parts.append(SOURCES)
    parts += [f"| `{key}` | {_cell(SOURCE_KEYS[key])} |\n" for key in FIELDS]
    return "".join(parts)


def _codes(words: Any) -> str:
    return "<br>".join(f"`{word}`" for word in words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that is not hidden, with its full name, in the order of the help."""
    yield from _walk("boathook", typer.main.get_command(app))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if command.hidden:
        return
    yield name, command
    for child, subcommand in getattr(command, "commands", {}).items():
        yield from _walk(f"{name} {child}", subcommand)


def cli() -> str:
    """Return the page on the command line."""
    parts = [
        "# Command line\n\n",
        GENERATED.format(origin="src/boathook/cli"),
        "\n\nListings take `--json` and then print one object a line. Errors name what is wrong and how to mend it;\n",
        "the exit status is 0 when all is well, 1 when a check failed, and 2 when the command was not understood.\n",
    ]
    for name, command in commands():
        parts += _command(name, command)
    return "".join(parts)


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = "".join(f" {_usage(param)}" for param in command.params if param.param_type_name == "argument")
    yield f"\n## `{name}{arguments}`\n\n{_sentences(command.help)}\n"
    if examples := re.findall(r"^Example: (.+)$", command.epilog or "", re.MULTILINE):
        yield "\n```sh\n{}\n```\n".format("\n".join(examples))
    rows = [param for param in command.params if _is_shown(param)]
    if rows:
        yield "\n| parameter | default | what it does |\n|---|---|---|\n"
    for param in rows:
        yield f"| `{_spelling(param)}` | {_default(param)} | {_cell(_sentences(param.help))} |\n"


def _usage(param: Any) -> str:
    word = _metavar(param)
    return word if param.required or word.startswith("[") else f"[{word}]"


def _is_shown(param: Any) -> bool:
    return not getattr(param, "hidden", False) and param.name not in {"help", "install_completion", "show_completion"}


def _sentences(text: str | None) -> str:
    plain = re.sub(r"\[/?[a-z ]+\]", "", (text or "").split("\f")[0])
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in plain.strip().split("\n\n"))


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name).upper()


def _spelling(param: Any) -> str:
    if param.param_type_name == "argument":
        return _metavar(param)
    names = ", ".join([*param.opts, *param.secondary_opts])
    return names if param.is_flag else f"{names} {_metavar(param)}"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    value = getattr(param.default, "value", param.default)
    return f"`{value}`" if isinstance(value, str | int | float | Path) and value not in {"", False} else ""


def metrics() -> str:
    """Return the page on metrics."""
    parts = [
        "# Metrics\n\n",
        GENERATED.format(origin="src/boathook/telemetry/metrics.py"),
        "\n\n`/metrics` gives them in Prometheus's text format, `/metrics.json` as JSON, each over all processes of\n",
        "one data folder; counters go on where they were after a restart. A histogram has the series `_bucket`,\n",
        "`_sum` and `_count`.\n\n",
        "Apps add metrics of their own (`hook.counter`, `hook.gauge`, `hook.histogram`), kept and merged in the same\n",
        "way, and may show any metric a second time under the name that their owner's dashboards know\n",
        "(`hook.mirror`); each app's README lists its own. Below are boathook's.\n",
        "\n| name | kind | labels | what it says |\n|---|---|---|---|\n",
    ]
    parts += [_metric(metric) for metric in TABLE]
    return "".join(parts)


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    kind = metric.kind.value
    if metric.kind is Kind.HISTOGRAM:
        kind += f", {metric.bounds[0]:g} to {metric.bounds[-1]:g}"
    return f"| `{metric.name}` | {kind} | {labels} | {_cell(metric.help)} |\n"


PROVIDERS = """\
# Providers

{generated}

A provider is a recipe: how one sender signs, names its events, shakes hands and wants to be answered. Name it in
`[sources.NAME]` (`provider = "..."`, or give the source the provider's name), call it in code with
[`boathook.verify`](verify.md), and sign like it in tests with `boathook.testing`. `boathook sources providers --json`
lists the same facts. Each provider has a page of its own: how to set it up there and here, and how to try it.

## What a proof covers

"Verified" is not one thing, so every event keeps its grade, and every listing shows it:

| grade | what the sender's proof covers |
|---|---|
| body signed | the whole body: nobody without the secret can have changed a byte |
| metadata only | a time, an id or some fields: fetch the rest from the sender's API before acting on it |
| token | nothing of the body: who knows the token can send anything |
| address | nothing: whoever sends from the sender's networks is believed |
| none | anybody may have sent it |

## What is checked against what

"Both ways" means that the sender's own library accepts what our recipe signs and we accept what it signs. What was not
read in the sender's documentation or code is marked: <sup>S</sup> read elsewhere, <sup>R</sup> not checked.

| provider | proof covers | checked against |
|---|---|---|
"""

BEHAVIOUR = """
## How they behave

Handshakes are answered by themselves. A status in the last column makes that sender stop, so boathook never answers it
by accident.

| provider | handshake | wants | answer within | retries | stops at |
|---|---|---|---|---|---|
"""

OWN_SETTINGS = """
## Settings of their own

They stand in the source's table. `scheme` chooses another way in which the same sender may prove itself.

| provider | setting | what it does |
|---|---|---|
"""


HANDSHAKES: dict[type, str] = {
    Echo: "a text echoed",
    Say: "a fixed answer",
    SignText: "a text signed",
    Visit: "an address visited",
    Capture: "a told secret kept",
}


def providers() -> str:
    """Return the page on providers."""
    parts = [PROVIDERS.format(generated=GENERATED.format(origin="src/boathook/inbound/providers"))]
    for recipe in RECIPES:
        marks = _mark(recipe, "proof", "grade", "template")
        checked = _cell("; ".join(recipe.checked)) or "-"
        parts.append(f"| {_provider(recipe)} | {recipe.grade.value}{marks} | {checked} |\n")
    parts.append(BEHAVIOUR)
    parts += [_behaviour(recipe) for recipe in RECIPES]
    parts.append(OWN_SETTINGS)
    parts += [row for recipe in RECIPES for row in _own_settings(recipe)]
    return "".join(parts)


def _provider(recipe: Recipe) -> str:
    names = ", ".join(f"`{name}`" for name in (recipe.name, *recipe.aliases))
    return f"[{recipe.title}](providers/{recipe.name}.md) {names}"


def _mark(recipe: Recipe, *facts: str) -> str:
    weakest = [recipe.sure[fact] for fact in facts if recipe.sure.get(fact, Sure.PRIMARY) is not Sure.PRIMARY]
    return f"<sup>{'R' if Sure.MEMORY in weakest else 'S'}</sup>" if weakest else ""


def _behaviour(recipe: Recipe) -> str:
    handshakes = ", ".join(dict.fromkeys(HANDSHAKES[type(one.answer)] for one in recipe.handshakes))
    reply = recipe.reply
    wanted = "any 2xx"
    if reply is not None:
        body = "".join(
            part if isinstance(part, str) else f"{{{getattr(part, 'name', 'value')}}}" for part in reply.body
        )
        wanted = f"{reply.status} `{body}`" if body else f"{reply.status}, empty"
        if reply.only_with:
            wanted = f"any 2xx; with {' or '.join(_hole(place) for place in reply.only_with)} {wanted}"
    within = "" if recipe.answer_within_s is None else f"{recipe.answer_within_s:g} s"
    return (
        f"| `{recipe.name}` | {handshakes}{_mark(recipe, 'handshakes')} | {_cell(wanted)}{_mark(recipe, 'reply')} "
        f"| {within}{_mark(recipe, 'answer_within_s') if within else ''} "
        f"| {_cell(recipe.retries)}{_mark(recipe, 'retries') if recipe.retries else ''} "
        f"| {', '.join(map(str, sorted(recipe.stop_statuses)))}{_mark(recipe, 'stop_statuses')} |\n"
    )


def _hole(place: Place) -> str:
    return f"{{{place.path if isinstance(place, Json) else place.name}}}"


def _own_settings(recipe: Recipe) -> Iterator[str]:
    if recipe.schemes:
        words = ", ".join(f'`"{scheme}"`' for scheme in recipe.schemes)
        yield f"| `{recipe.name}` | `scheme` | {words} |\n"
    for one in recipe.settings:
        required = ", required" if one.is_required else ""
        choices = f" One of {', '.join(f'`{choice}`' for choice in one.choices)}." if one.choices else ""
        default = f" `{one.default}` where absent." if one.default else ""
        yield f"| `{recipe.name}` | `{one.name}`{required} | {_cell(one.help)}.{choices}{default} |\n"


def books() -> str:
    """Return the page on the books and their rules."""
    parts = [BOOKS.format(generated=GENERATED.format(origin="src/boathook/journal/rules.py"))]
    for walk in WALKS:
        parts += [_rule(rule, "`--deep` only. " if walk.is_deep else "") for rule in walk.rules]
    parts += [_rule(rule, "") for rule in (LINES, SEALS, *WHOLE)]
    return "".join(parts)


def _rule(rule: Rule, when: str) -> str:
    heading = rule.title[0].upper() + rule.title[1:]
    return f"\n### {heading}\n\n{when}Broken, it means: {rule.meaning}\n\n{rule.remedy}\n"


BOOKS = """\
# The books

{generated}

`boathook verify` recounts the whole store and shows that every accepted event is still owed or has ended, once,
and that nothing else is stored. It changes nothing. It exits with 0 where the books balance, with 1 where they
do not, and with 2 where it could not look.

```sh
boathook verify
boathook verify --deep --gently
boathook verify --since 7d --json
```

## On a live store

- **It looks at one range of events after the other**, some thousands at a time, each in one statement that is
  meant to take a quarter of a second; a range that takes longer makes the next one smaller. All that hangs on
  an event has the event's id, so each look sees its events whole and as of one moment. What is accepted, tried,
  replayed, purged or dropped by retention meanwhile is no imbalance: there are no false alarms to explain away.
- **It holds nobody up.** It takes no locks but those of a reader and keeps no snapshot open, so vacuum goes on
  beside it. It uses one connection, one core of PostgreSQL at most, and memory that does not grow with the
  history. `--gently` rests three times as long as it looks.
- **The dedup memory** is kept by key, not by time, but its rows lie about in the order of their events, and a small
  index (`dedup_order`) tells which of its pages may hold keys of a range, also after keys were forgotten and others put
  in their place. Should that index be missing, all keys are read for each look; ranges then grow to a quarter of a
  million events, so that there are few looks, which take as long as reading that one table does.
- **The balance** holds each event as of the moment at which it was looked at. Events that are taken in behind
  the place that the check has come to are in none of its sums; the next check has them.
- **`--since` and `--until`** bound the events, with all that hangs on them, by when they were accepted. A check
  that was stopped begins again, so a long history is better checked in parts, each of which stands for itself. The
  last four rules below look at the whole store in any case.
- **What waits in this host's spool** is counted beside the balance. It was accepted and is safe, but PostgreSQL
  does not have it yet; of a segment that is being drained at this moment it may have some already. Spools of
  other hosts are counted there.
- The spool is read even where PostgreSQL is away, and its number is told with the reason why the check was not
  made.

Measured on 2026-11-21 with ten million events in PostgreSQL (11 GB: 12 million attempts, 11 million deliveries, ten
million dedup keys), all bodies compared: 160 seconds of one core, 100 MB in PostgreSQL's process, 70 MB in this one.
On 2026-11-22, on two busy processors, the walk along the memory of two million events took 8 to 10 seconds in looks of
at most 0.4 seconds; with eight million other keys beside them, 15 to 22 seconds in looks of at most one.

Each imbalance is told with how often it was found, and the first five examples: which event or delivery, what
was expected, what is there, the command that shows it, and what to do. `--json` has the same.

There is no self-test to run on your own database, as it would have to break something: boathook's own tests
break a store in more than sixty ways, each rule at least once, and each has to be found by its own rule.

## The rules
"""


def permissions() -> str:
    """Return the page on permissions."""
    parts = [
        "# Permissions\n\n",
        GENERATED.format(origin="src/boathook/admin/authorization.py"),
        "\n\nEach route of the API, page of the console and portal, and mounted path of an app needs one permission.\n",
        "This table alone decides who has it. A route that names no permission keeps boathook from starting.\n\n",
        "- **operator**: the least role of an operator of the [console](console.md).\n",
        "- **application's token**: an API key of one application or a token of its portal; a portal token with a\n",
        "  list of capabilities needs the one that is named. Each has `ViewBase`.\n",
        "- **organization's token**: an API key of the whole organization.\n\n",
        "The command line has the password of the database, and is not asked.\n\n",
        "| permission | operator | application's token | organization's token |\n|---|---|---|---|\n",
    ]
    return "".join([*parts, *map(_permission, RULES)])


def _permission(permission: Permission) -> str:
    rule = RULES[permission]
    if rule.is_public:
        return f"| `{permission}` | anybody | anybody | anybody |\n"
    capability = f"`{rule.capability}`" if rule.capability else "no"
    return f"| `{permission}` | {rule.role or 'no'} | {capability} | {'yes' if rule.is_for_organization else 'no'} |\n"


def pages() -> dict[Path, str]:
    """Return every generated page with its text."""
    docs = ROOT / "docs"
    how_tos = {docs / f"providers/{name}.md": text for name, text in docs_providers.pages().items()}
    return how_tos | {
        docs / "configuration.md": configuration(),
        docs / "cli.md": cli(),
        docs / "metrics.md": metrics(),
        docs / "permissions.md": permissions(),
        docs / "providers.md": providers(),
        docs / "books.md": books(),
        docs / "http-api.md": docs_http.page(GENERATED.format(origin="src/boathook/admin/api")),
        docs / "svix-clients.md": docs_svix.page(GENERATED.format(origin="tests/acceptance/svix/scenario.py")),
        docs / "python-api.md": docs_python.page(GENERATED.format(origin="the docstrings")),
    }


if __name__ == "__main__":
    (ROOT / "docs/providers").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
