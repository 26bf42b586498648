"""Writes the generated pages of docs/.

Each page comes from the one place where its facts are kept: `defaults.toml`, the command line's own definition, the
table of metrics, the recipes, the invariants of the store, the API's own description, the docstrings of public
names and of a source's settings, and the measured cost of an event. `make docs` runs this; a test compares the pages.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer.main
import yaml

from boathook.cli import app
from boathook.cli.app_commands import with_package_commands
from boathook.config import SCHEMA_URL, SourceSettings
from boathook.config.notifications import RuleSettings, Selection, default_rules
from boathook.config.packages import alert_rules_of, defaults_file, own_packages, resolve
from boathook.config.tables import MountSettings
from boathook.config.types import Table
from boathook.db.invariants import AUDIT_CHAIN, GLOBAL_INVARIANTS, ORDER_KEYS, SCANS, Invariant
from boathook.domain.policy import RETRY_PRESETS, RetryPolicy
from boathook.observability import prometheus_rules
from boathook.observability.metrics import TABLE, Metric, MetricKind
from boathook.providers import RECIPES
from boathook.providers.recipe import CaptureSecret, Confidence, ConfirmByFetch, Echo, Recipe, SignText, StaticAnswer
from boathook.providers.request_reader import Json, Selector
from boathook.service import catalogue
from boathook.service.access.authorization import ACCESS_RULES, Permission
from boathook.service.catalogue.operation import Operation
from scripts import docs_capacity, docs_providers, docs_python, docs_schema, docs_svix

ROOT = Path(__file__).parents[1]
DEFAULTS = ROOT / "src/boathook/defaults.toml"
SENDING = ROOT / "docs/how-to/sending.md"
POLICY = ROOT / "src/boathook/domain/policy.py"
ALERTS = ROOT / "src/boathook/observability/alerts.yml"
ALERT_RULES = ROOT / "src/boathook/config/alert_rules.toml"
NOTIFICATIONS = ROOT / "src/boathook/config/notifications.py"
SUBJECTS = {
    "dead_letter_causes": "cause",
    "dead_letters": "recipient",
    "unhandled": "source",
    "repeated_body": "source",
    "disabled_endpoints": "endpoint",
    "paused_endpoints": "endpoint",
}
MAX_LABELS = 60
"""Characters of a rule's labels above which the page leaves them out."""
CAPACITY = ROOT / "docs/explanation/capacity.md"
GENERATED = "<!-- Written by `make docs`; edit {origin} instead. -->"

CONFIGURATION = """\
# Configuration

{generated}

Every setting has a default. `boathook.toml` in the working folder (or the file named with `--config` or by the
variable `BOATHOOK_CONFIG`) overrides the defaults, `BOATHOOK_*` environment variables override the file, and flags
override everything. The variable of a key is `BOATHOOK_` and the key in capitals with underscores for dots:
`server.bind` is `BOATHOOK_SERVER_BIND`. Three have short names besides: `BOATHOOK_DATABASE_URL`, `BOATHOOK_BIND` and
`BOATHOOK_DATA_DIR`. A list in a variable is JSON or separated by commas. An unknown key is refused, with the nearest
known one; a variable without a section's name, such as `BOATHOOK_BINDD`, is a warning, and those that Kubernetes adds
for a service called boathook are ignored.

Secrets are not written into the file: `"env:NAME"` reads an environment variable, `"file:PATH"` a file, relative to the
folder of `boathook.toml`.

Commands read `.env` beside `boathook.toml` for variables that the environment lacks.

An editor that knows TOML completes keys, explains them and marks mistakes by the [JSON Schema](boathook.schema.json)
of this file, if its first line names the schema; `boathook init` writes that line. `boathook config schema` prints the
schema of the installed version.

```toml
#:schema {schema_url}
```

`boathook config show` prints the settings in force. A table that is not listed here, such as `[billing]`, is kept for
the app that reads it.
"""

SOURCES = """
## `[sources.NAME]`

One table for each source of requests, which are sent to `/in/NAME`. Keys marked `hmac`, `token` or `unsigned` belong to
these generic providers, for senders that have no provider of their own. Other providers have settings of their own in
the same table.

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

MOUNTS = """
## `[mounts."/PATH"]`

One table for each mounted path of an app that browsers, or users with a JSON Web Token, may call: see
[Read an app's data from a browser](../how-to/read-from-a-browser.md). A path that no app mounts is refused.

```toml
[mounts."/api/rentprog"]
origins = ["https://dashboard.example.com"]
roles = { fleet-viewer = "reader", dispatcher = "operator" }

[jwt]
issuer = "https://login.example.com/"
audience = "fleet"
jwks_url = "https://login.example.com/jwks.json"
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


def setting_entries() -> dict[str, list[Entry]]:
    """Return the entries of each section: boathook's own, then those of the optional packages in its distribution."""
    tables = read_entries(DEFAULTS.read_text(encoding="utf-8"))
    for package in own_packages():
        for table, entries in read_entries(defaults_file(package).read_text(encoding="utf-8")).items():
            tables.setdefault(table, []).extend(entries)
    return tables


def configuration() -> str:
    """Return the page on settings."""
    parts = [
        CONFIGURATION.format(generated=GENERATED.format(origin="src/boathook/defaults.toml"), schema_url=SCHEMA_URL)
    ]
    for table, entries in setting_entries().items():
        parts.append(f"\n## `[{table}]`\n\n| key | default | what it does |\n|---|---|---|\n")
        parts += [
            f"| {_codes(f'{table}.{key}' for key in entry.keys)} | {_codes(entry.defaults)} | {_cell(entry.text)} |\n"
            for entry in entries
        ]
    parts.append(SOURCES)
    parts += [f"| `{key}` | {_cell(text)} |\n" for key, text in keys_of(SourceSettings).items()]
    parts.append(MOUNTS)
    parts += [f"| `{key}` | {_cell(text)} |\n" for key, text in keys_of(MountSettings).items()]
    return "".join(parts)


def keys_of(settings: type[Table]) -> dict[str, str]:
    """Return the description of each key of a table that has no comments in `defaults.toml`: its docstring."""
    texts = dict(docs_python.fields(settings))
    return {field.alias or name: " ".join(texts[name].split()) for name, field in settings.model_fields.items()}


def toml_schema() -> str:
    """Return the JSON Schema of boathook.toml."""
    tables = setting_entries()
    texts = {table: {key: entry.text for entry in entries for key in entry.keys} for table, entries in tables.items()}
    own_texts = {table.__name__: keys_of(table) for table in (SourceSettings, MountSettings, RuleSettings, Selection)}
    return docs_schema.schema(texts, own_texts)


def _codes(words: Any) -> str:
    return "<br>".join(f"`{word}`" for word in words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def own_metrics() -> tuple[Metric, ...]:
    """Return the metrics of boathook, and of the optional packages in its distribution."""
    of_packages = (resolve(package.metrics) for package in own_packages() if package.metrics is not None)
    return (*TABLE, *chain.from_iterable(of_packages))


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that is not hidden, with its full name, in the order of the help."""
    yield from _walk("boathook", typer.main.get_command(with_package_commands(app, None)))


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
        "\n\nCommands take `--json` and print one object a line. Ids may be given by their beginning: at least four\n",
        "characters after the prefix. Errors name what is wrong and how to fix it;\n",
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
        GENERATED.format(origin="src/boathook/observability/metrics.py"),
        "\n\n`/metrics` gives them in Prometheus's text format, `/metrics.json` as JSON, each over all processes of\n",
        "one data folder; counters go on where they were after a restart. A histogram has the series `_bucket`,\n",
        "`_sum` and `_count`. `/metrics/history` gives the last hour by the minute as JSON, over all hosts, from the\n",
        "samples in PostgreSQL that charts and alert rules read; it is 503 while PostgreSQL is unavailable.\n\n",
        "Apps add metrics of their own (`hook.counter`, `hook.gauge`, `hook.histogram`), kept and merged in the same\n",
        "way, and may show any metric a second time under the name that their owner's dashboards know\n",
        "(`hook.mirror`); each app's README lists its own. Below are boathook's.\n",
        "\n| name | kind | labels | what it says |\n|---|---|---|---|\n",
    ]
    parts += [_metric(metric) for metric in own_metrics()]
    return "".join(parts)


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    kind = metric.kind.value
    if metric.kind is MetricKind.HISTOGRAM:
        kind += f", {metric.bounds[0]:g} to {metric.bounds[-1]:g}"
    return f"| `{metric.name}` | {kind} | {labels} | {_cell(metric.help)} |\n"


PROVIDERS = """\
# Providers

{generated}

A provider is a recipe: how one sender signs, names its events, does handshakes and expects replies. Name it in
`[sources.NAME]` (`provider = "..."`, or give the source the provider's name), call it in code with
[`boathook.verify`](../how-to/verify.md), and sign like it in tests with `boathook.testing`.
`boathook sources providers --json` lists the same facts. Each provider has a page of its own: how to set it up
there and here, and how to test it.

**Your sender is not in the list?** Use [`hmac`](providers/hmac.md) if it signs requests with an HMAC,
[`token`](providers/token.md) if it sends a static token or a Basic password, and
[`unsigned`](providers/unsigned.md) if it does neither. If it follows Standard Webhooks or sends through Svix, use
[`standard-webhooks`](providers/standard-webhooks.md).

## What a signature covers

Every event has a grade, shown in every listing:

| grade | what the signature covers |
|---|---|
| body signed | the whole body: it cannot be changed without the secret |
| metadata only | a time, an id or some fields: fetch the rest from the sender's API before acting on it |
| token | nothing of the body: anyone who has the token can send anything |
| address | nothing: every request from the sender's networks is accepted |
| none | nothing: anyone can send requests |

## What is checked against what

"Both ways" means that the sender's own library accepts what our recipe signs and we accept what it signs. Facts that
are not from the sender's documentation or code are marked: <sup>S</sup> from another source, <sup>R</sup> not verified.

| provider | proof covers | checked against |
|---|---|---|
"""

IDENTITY = """
## Which time and id are signed

The sender's id is the identity of an event. Where neither it nor a time is signed, a captured request can be
sent again under new ids, at any time; see [security](../explanation/security.md#receiving). The settings of `hmac`,
and the schemes of a provider, change the answers: `boathook sources show` has those of a source.

| provider | time signed | id signed | retries keep the id | can be repeated under a new id |
|---|---|---|---|---|
"""

BEHAVIOUR = """
## How they behave

Handshakes are answered automatically. A status in the last column makes that sender stop, so boathook never sends it
by accident.

| provider | handshake | expected response | reply within | largest body | retries | stops at |
|---|---|---|---|---|---|---|
"""

OWN_SETTINGS = """
## Settings of their own

They belong in the source's table. `scheme` selects another signature scheme of the same sender.

| provider | setting | what it does |
|---|---|---|
"""


HANDSHAKES: dict[type, str] = {
    Echo: "echo of a text",
    StaticAnswer: "fixed reply",
    SignText: "signature of a text",
    ConfirmByFetch: "URL fetched",
    CaptureSecret: "secret stored",
}


def providers() -> str:
    """Return the page on providers."""
    parts = [PROVIDERS.format(generated=GENERATED.format(origin="src/boathook/providers"))]
    for recipe in RECIPES:
        marks = _mark(recipe, "proof", "grade", "template")
        checked = _cell("; ".join(recipe.checked)) or "-"
        parts.append(f"| {_provider(recipe)} | {recipe.grade.value}{marks} | {checked} |\n")
    parts.append(IDENTITY)
    parts += [_identity(recipe) for recipe in RECIPES]
    parts.append(BEHAVIOUR)
    parts += [_behaviour(recipe) for recipe in RECIPES]
    parts.append(OWN_SETTINGS)
    parts += [row for recipe in RECIPES for row in _own_settings(recipe)]
    return "".join(parts)


def _identity(recipe: Recipe) -> str:
    yes_or_no = {True: "yes", False: "no", None: "unconfirmed"}
    has_id = bool(recipe.id.selectors) or (recipe.items is not None and bool(recipe.items.id.selectors))
    kept = yes_or_no[recipe.retries_keep_id] if recipe.id.selectors else "in the body" if has_id else "no id"
    return (
        f"| `{recipe.name}` | {yes_or_no[recipe.signs_time]} | {yes_or_no[recipe.signs_id] if has_id else 'no id'} "
        f"| {kept} | {'yes' if recipe.can_be_repeated else ''} |\n"
    )


def _provider(recipe: Recipe) -> str:
    names = ", ".join(f"`{name}`" for name in (recipe.name, *recipe.aliases))
    return f"[{recipe.title}](providers/{recipe.name}.md) {names}"


def _mark(recipe: Recipe, *facts: str) -> str:
    weakest = [
        recipe.confidence[fact]
        for fact in facts
        if recipe.confidence.get(fact, Confidence.PRIMARY) is not Confidence.PRIMARY
    ]
    return f"<sup>{'R' if Confidence.MEMORY in weakest else 'S'}</sup>" if weakest else ""


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
            wanted = f"any 2xx; with {' or '.join(_placeholder(selector) for selector in reply.only_with)} {wanted}"
    within = "" if recipe.answer_within_s is None else f"{recipe.answer_within_s:g} s"
    return (
        f"| `{recipe.name}` | {handshakes}{_mark(recipe, 'handshakes')} | {_cell(wanted)}{_mark(recipe, 'reply')} "
        f"| {within}{_mark(recipe, 'answer_within_s') if within else ''} "
        f"| {f'{recipe.max_body >> 20} MB' if recipe.max_body else ''}{_mark(recipe, 'max_body')} "
        f"| {_cell(recipe.retries)}{_mark(recipe, 'retries') if recipe.retries else ''} "
        f"| {', '.join(map(str, sorted(recipe.stop_statuses)))}{_mark(recipe, 'stop_statuses')} |\n"
    )


def _placeholder(selector: Selector) -> str:
    return f"{{{selector.path if isinstance(selector, Json) else selector.name}}}"


def _own_settings(recipe: Recipe) -> Iterator[str]:
    if recipe.schemes:
        words = ", ".join(f'`"{scheme}"`' for scheme in recipe.schemes)
        yield f"| `{recipe.name}` | `scheme` | {words} |\n"
    for one in recipe.settings:
        required = ", required" if one.is_required else ""
        choices = f" One of {', '.join(f'`{choice}`' for choice in one.choices)}." if one.choices else ""
        default = f" Default: `{one.default}`." if one.default else ""
        yield f"| `{recipe.name}` | `{one.name}`{required} | {_cell(one.help)}.{choices}{default} |\n"


def integrity_rules() -> str:
    """Return the page on the consistency check and its invariants."""
    parts = [INTEGRITY_PAGE.format(generated=GENERATED.format(origin="src/boathook/db/invariants.py"))]
    for walk in SCANS:
        parts += [_rule(rule, "`--deep` only. " if walk.is_deep else "") for rule in walk.rules]
    parts += [_rule(rule, "") for rule in (ORDER_KEYS, AUDIT_CHAIN, *GLOBAL_INVARIANTS)]
    return "".join(parts)


def _rule(rule: Invariant, when: str) -> str:
    heading = rule.title[0].upper() + rule.title[1:]
    return f"\n### {heading}\n\n{when}If violated: {rule.meaning}\n\n{rule.remedy}\n"


INTEGRITY_PAGE = """\
# Consistency check

{generated}

`boathook check` checks the whole store: every accepted event has deliveries that are pending or ended exactly once,
and nothing else is stored. It changes nothing. It exits with 0 if all invariants hold, with 1 if not, and with 2 if it
could not check.

```sh
boathook check
boathook check --deep --gently
boathook check --since 7d --json
```

## On a live system

- **Small steps.** It checks ranges of some thousands of events, each in one statement that should take a quarter of a
  second. Everything about an event has the event's id, so each step sees whole events at one moment; concurrent changes
  are no violations.
- **Low impact.** It takes only read locks and holds no snapshot, so vacuum continues. It uses one connection, at most
  one core of PostgreSQL, and constant memory. `--gently` rests three times as long as it works.
- **Deduplication keys** are found through the index `dedup_order`. Without it, every step reads all keys; ranges then
  grow to a quarter of a million events.
- **The totals** hold each event as of the moment when it was checked. Events accepted behind the cursor while the check
  runs are left for the next check.
- **`--since` and `--until`** select events by acceptance time. A check that was stopped starts again, so check a long
  history in parts. The last four invariants below cover the whole store in any case.
- **This host's spool** is counted beside the totals, even if PostgreSQL is unavailable. Other hosts count their
  own.

Ten million events (11 GB, 12 million attempts) took 160 seconds of one core on 2026-11-21, all bodies compared, with
100 MB in PostgreSQL's process and 70 MB in this one.

Each violation is reported with a count and up to five examples: the event or delivery, what was expected, what was
found, the command that shows it, and what to do. `--json` has the same.

boathook's tests damage a store in more than sixty ways; each is found by its own invariant.

## Invariants
"""


def permissions() -> str:
    """Return the page on permissions."""
    parts = [
        "# Permissions\n\n",
        GENERATED.format(origin="src/boathook/service/access/authorization.py"),
        "\n\nEach route of the API, page of the console and portal, and mounted path of an app needs one permission.\n",
        "This table alone decides who has it. boathook does not start with a route without a permission.\n\n",
        "- **operator**: the lowest sufficient role of an operator of the [console](console.md), and of an\n",
        "  [operator's token](../how-to/operator-tokens.md); *signed in* means that a token is not sufficient.\n",
        "- **application's token**: an API key of one application or a token of its portal; a portal token with a\n",
        "  list of capabilities needs the one that is named. Each has `ViewBase`.\n",
        "- **organization's token**: an API key of the whole organization.\n",
        "- **mount's token**: an API key of one [mounted path](../how-to/read-from-a-browser.md), or a user's\n",
        "  JSON Web Token there; it may do nothing else.\n\n",
        "The command line uses the database's password and is not restricted.\n\n",
        "| permission | operator | application's token | organization's token | mount's token |\n",
        "|---|---|---|---|---|\n",
    ]
    return "".join([*parts, *map(_permission, ACCESS_RULES)])


def _permission(permission: Permission) -> str:
    rule = ACCESS_RULES[permission]
    if rule.is_public:
        return f"| `{permission}` | anybody | anybody | anybody | anybody |\n"
    capability = f"`{rule.capability}`" if rule.capability else "no"
    organization = "yes" if rule.is_for_organization else "no"
    role = "no" if rule.role is None else f"{rule.role}{'' if rule.is_for_operator_tokens else ', signed in'}"
    return f"| `{permission}` | {role} | {capability} | {organization} | {rule.mount_role or 'no'} |\n"


def operations() -> str:
    """Return the page on the catalogue of operations."""
    derived = {
        each.name: name
        for name, command in commands()
        for each in (getattr(command.callback, "operation", None), *getattr(command.callback, "alternatives", ()))
        if each is not None
    }
    parts = [
        "# Operations\n\n",
        GENERATED.format(origin="src/boathook/service/catalogue"),
        "\n\nWhat operators and API users do is declared once. The command, the route and the checks of forms\n",
        "derive from the declaration, so that the limits of fields, the errors and the audit are the same.\n\n",
        "- **needs**: the [permission](permissions.md). An operation of the *deployment* is for operators and their\n",
        "  [tokens](../how-to/operator-tokens.md); one of an *organization* is for its keys too, and one of an\n",
        "  *application* also for keys of that application.\n",
        "- **undo**: how to undo it; *never* if that is impossible, nothing if it only reads.\n\n",
        "| operation | what it does | command | route | needs | undo |\n|---|---|---|---|---|---|\n",
    ]
    return "".join([*parts, *(_operation(each, derived.get(each.name)) for each in catalogue.load())])


def _operation(each: Operation[Any, Any], command: str | None) -> str:
    http = each.http
    cells = (
        f"`{each.name}`",
        _cell(each.help),
        f"`{command}`" if command else "",
        f"`{http.method} {http.path}`" if http else "",
        f"`{each.permission}`, {each.scope}",
        "never" if each.undo is None else _cell(each.undo),
    )
    return f"| {' | '.join(cells)} |\n"


def alerts(written: str) -> str:
    """Return the page on alerts: what is *written* by hand of it, with the keys of a rule and both kinds of rules."""
    rules = default_rules()
    for package in own_packages():
        rules |= alert_rules_of(package)
    groups = yaml.safe_load(prometheus_rules(own_packages()))["groups"]
    written = _fill_table(written, ALERT_RULES, [_alert_rule(name, keys) for name, keys in rules.items()])
    keys = [_rule_key(key, text) for key, text in keys_of(RuleSettings).items()]
    written = _fill_table(written, NOTIFICATIONS, keys, ("key", "default", "meaning"))
    return _fill_table(written, ALERTS, [_alert(rule) for group in groups for rule in group["rules"]])


def sending(written: str) -> str:
    """Return the page on sending: what is *written* by hand of it, with the table of retry presets."""
    rows = [
        f"| `{name}` | {_delays(policy)} | {policy.jitter * 100:.0f} % |\n" for name, policy in RETRY_PRESETS.items()
    ]
    return _fill_table(written, POLICY, rows, ("preset", "waits between attempts", "varied by up to"))


def _delays(policy: RetryPolicy) -> str:
    """Return the waits of a schedule, such as ``5 s; 5, 30 min``."""
    units = ((3600, "h"), (60, "min"), (1, "s"))
    waits = [next((delay / size, unit) for size, unit in units if delay >= size) for delay in policy.delays_s or ()]
    groups = groupby(waits, itemgetter(1))
    return "; ".join(f"{', '.join(f'{wait:.3g}' for wait, _ in group)} {unit}" for unit, group in groups) or "none"


_RULE_COLUMNS = ("rule", "severity", "it fires when", "what to do")


def _fill_table(written: str, origin: Path, rows: list[str], columns: Sequence[str] = _RULE_COLUMNS) -> str:
    start = GENERATED.format(origin=origin.relative_to(ROOT))
    head, _, rest = written.partition(start)
    table = f"\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n{''.join(rows)}\n<!-- end -->"
    return f"{head}{start}{table}{rest.partition('<!-- end -->')[2]}"


def _rule_key(key: str, text: str) -> str:
    default = RuleSettings.model_fields[key].get_default(call_default_factory=True)
    shown = "" if default in (None, "", (), {}) else f"`{json.dumps(default)}`"
    return f"| `{key}` | {shown} | {_cell(text)} |\n"


def _alert_rule(name: str, keys: dict[str, Any]) -> str:
    subject = SUBJECTS.get(keys.get("rows", ""), keys.get("by", ["subject"])[0])
    fires = re.sub(r"\{(\w+)\}", lambda word: f"*{subject if word[1] == 'subject' else word[1]}*", keys["summary"])
    fires += _condition(keys)
    cells = (keys["severity"], fires, keys["advice"])
    return f"| `{name}` | {' | '.join(map(_cell, cells))} |\n"


def _condition(keys: dict[str, Any]) -> str:
    if "rows" in keys:
        return ""
    measure, within = keys.get("measure", "value"), f" within {keys.get('over_s', 300) / 60:g} min"
    labels = ", ".join(f"{name} {_words(values)}" for name, values in keys.get("labels", {}).items())
    parts = [
        f"{'' if measure == 'value' else f'{measure} of '}`{keys['metric']}`",
        f" with {labels}" if 0 < len(labels) <= MAX_LABELS else "",
        f" above {keys['above']:g}{'' if measure == 'value' else within}",
        f", {keys['times']:g} times yesterday's" if "times" in keys else "",
        f", of at least {keys['at_least']:g}" if "at_least" in keys else "",
        f", without an increase of {_list(one['metric'] for one in keys['unless'])}{within}"
        if "unless" in keys
        else "",
        f", for {keys['for_s']:g} s" if "for_s" in keys else "",
    ]
    return f" ({''.join(parts)})"


def _words(values: str | list[str]) -> str:
    return values if isinstance(values, str) else " or ".join(values)


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _alert(rule: Any) -> str:
    texts = [
        re.sub(r"\{\{ \$(\w+\.)?(\w+).*?\}\}", r"*\2*", rule["annotations"][key]) for key in ("summary", "description")
    ]
    return f"| `{rule['alert']}` | {rule['labels']['severity']} | {' | '.join(map(_cell, texts))} |\n"


def pages() -> dict[Path, str]:
    """Return every generated page with its text."""
    # Imported only here, as it imports the whole API.
    from scripts import docs_http

    docs = ROOT / "docs/reference"
    how_tos = {docs / f"providers/{name}.md": text for name, text in docs_providers.pages().items()}
    schema = toml_schema()
    return how_tos | {
        docs / "boathook.schema.json": schema,
        ROOT / "src/boathook/boathook.schema.json": schema,
        docs / "configuration.md": configuration(),
        docs / "cli.md": cli(),
        docs / "metrics.md": metrics(),
        ROOT / "docs/how-to/alerts.md": alerts((ROOT / "docs/how-to/alerts.md").read_text("utf-8")),
        SENDING: sending(SENDING.read_text("utf-8")),
        docs / "permissions.md": permissions(),
        docs / "operations.md": operations(),
        docs / "providers.md": providers(),
        docs / "integrity.md": integrity_rules(),
        docs / "api.md": docs_http.page(
            (docs / "api.md").read_text("utf-8"), GENERATED.format(origin="src/boathook/api")
        ),
        docs / "svix-clients.md": docs_svix.page(GENERATED.format(origin="tests/acceptance/svix/scenario.py")),
        CAPACITY: docs_capacity.page(CAPACITY.read_text("utf-8")),
        docs / "python-api.md": docs_python.page(GENERATED.format(origin="the docstrings")),
    }


if __name__ == "__main__":
    (ROOT / "docs/reference/providers").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
