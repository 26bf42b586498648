"""Every parser of text and every function that calls itself, with what bounds it: a new one must be entered here."""

import ast
import importlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from boathook import config
from tests.guards.documents import SOURCES

NOT_SERVED: Final = {"boathook_demo", "testing"}
"""Rooms that read what they have made themselves."""
PARSERS: Final = {
    "json": {"json.load", "json.loads", "msgspec.json.Decoder", "msgspec.json.decode"},
    "yaml": {"yaml.compose", "yaml.load", "yaml.load_all", "yaml.parse", "yaml.safe_load", "yaml.scan"},
    "xml": {"ET.XML", "ET.XMLParser", "ET.XMLPullParser", "ET.fromstring", "ET.iterparse", "ET.parse"},
    "toml": {"tomllib.load", "tomllib.loads"},
    "form": {"parse_qs", "parse_qsl", "request.form"},
    "python": {"ast.literal_eval", "ast.parse", "compile", "eval", "exec", "marshal.loads", "pickle.loads"},
    "token": {"jwt.decode", "jwt.decode_complete", "jwt.get_unverified_header"},
    "key": {"load_pem_private_key", "load_pem_x509_certificates", "serialization.load_der_public_key",
            "serialization.load_pem_private_key", "serialization.load_pem_public_key", "x509.load_pem_x509_certificate"},
}  # fmt: skip

LATER: Final = (".call_soon", ".call_later", ".call_at", ".create_task")
"""What is handed to these begins with a stack of its own."""

OURS: Final = "ours"
"""Text that boathook or its app has written: rows, files of the data folder, orders to processes."""
OWNER: Final = "owner"
"""The configuration, and files that the owner names on the command line."""
API: Final = "settings:outbound.max_message"
BODY: Final = "settings:limits.max_body"
HEAD: Final = "settings:limits.max_head"
DEPTH: Final = "boathook.domain.json_document:MAX_DEPTH"
FORM: Final = "boathook_pages.security:_MAX_FORM_BYTES"
SCHEMA: Final = "boathook.verification.json_schema:MAX_SCHEMA"
OPENAPI: Final = "boathook.service.sending.openapi_import:"

CAPS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "api/route.py": {"json": (API,)},
    "api/derived.py": {"json": (API,)},
    "api/endpoints.py": {"json": (API,)},
    "api/idempotency.py": {"json": (API,), "_plain": (API,)},
    "api/messages.py": {"json": (API,)},
    "api/publish.py": {"json": ("boathook.api.publish:_MAX_BODY", DEPTH)},
    "domain/messages.py": {"json": (API, FORM)},
    "boathook_outage_publishing/access_copy.py": {"json": (OURS,)},
    "boathook_mcp/outside.py": {
        "json": ("boathook_mcp.outside:MAX_REDACTED",),
        **dict.fromkeys(("_shorten", "_mask_values"), ("boathook_mcp.outside:MAX_REDACTED",)),
    },
    "boathook_mcp/previews.py": {"json": (OURS,)},
    "boathook_rabbitmq/administration.py": {"json": ("boathook_rabbitmq.administration:_MAX_ANSWER",)},
    "service/receiving/conflicts.py": {"json": ("boathook.service.body_view:MAX_BYTES", DEPTH)},
    "boathook_console/shared/site.py": {"json": ("boathook_console.shared.site:_MAX_REPORT_BYTES",)},
    "boathook_console/shared/endpoint_forms.py": {
        "json": (FORM,),
        **dict.fromkeys(("_nodes", "_group", "tree_values"), ("boathook_console.shared.endpoint_forms:MAX_LEVELS",)),
    },
    "boathook_console/event_types.py": {"json": (FORM, SCHEMA)},
    "boathook_pages/user_webhooks/pages.py": {"form": (FORM, "boathook_pages.security:_MAX_FORM_FIELDS")},
    "boathook_pages/kit/api.py": {"json": ("boathook_pages.kit.api:_MAX_BODY",)},
    "boathook_pages/security.py": {"form": (FORM, "boathook_pages.security:_MAX_FORM_FIELDS")},
    "cli/remote.py": {
        "json": ("boathook.cli.remote:_MAX_ANSWER",),
        "toml": ("boathook.cli.remote:_MAX_PROFILES",),
    },
    "boathook_console/login.py": {"json": (HEAD,)},
    "boathook_portal/pages.py": {"form": (HEAD,)},
    "service/sending/endpoint_values.py": {"key": ("boathook.service.sending.endpoint_values:MAX_PEM",)},
    "service/sending/destinations.py": {"json": (OURS,)},
    "service/sending/endpoints.py": {"json": (OURS,)},
    "service/access/idempotency.py": {"json": (OURS,)},
    "service/sending/message_store.py": {"json": (OURS,)},
    "service/sending/messages.py": {"json": (API,)},
    "boathook_apps/browser_access.py": {"form": (HEAD, "boathook_apps.browser_access:_MAX_QUERY_FIELDS")},
    "boathook_apps/mount_access.py": {"json": ("boathook.http.websocket:MAX_MESSAGE_BYTES",)},
    "boathook_oidc/provider.py": {"json": ("boathook_oidc.provider:_MAX_BYTES",)},
    "service/access/signing_keys.py": {"token": ("boathook.verification.jwt:MAX_TOKEN",)},
    "service/access/user_tokens.py": {"json": ("boathook.service.access.user_tokens:_MAX_BYTES",)},
    "service/sending/openapi_import.py": {
        "json": (API, DEPTH),
        "yaml": (OPENAPI + "MAX_YAML", OPENAPI + "MAX_YAML_TOKENS", DEPTH),
        "_rewrite_references": (OPENAPI + "_MAX_STEPS", OPENAPI + "MAX_REFERENCE", DEPTH),
    },
    # As deep as our tables are.
    "service/fields.py": dict.fromkeys(("_unwrap", "problems", "problems_in", "_problems_of"), (OURS,)),
    "service/field_values.py": {
        **dict.fromkeys(("json", "read_json", "_convert"), (API,)),
        "write_json": (OURS,),
    },
    "service/schemas/fields.py": {"_model_in": (OURS,), "_unknown": (API,)},  # no deeper than our models are
    "service/shown_settings.py": {"_flatten": (OURS,), "_without_secrets": (OURS,)},
    "config/packages.py": {"toml": (OURS,)},
    "boathook_svix_import/fields.py": {"_validate": ("boathook_svix_import.reader:_MAX_ANSWER",)},
    "boathook_svix_import/reader.py": {"json": ("boathook_svix_import.reader:_MAX_ANSWER",)},
    "boathook_billing/payload.py": {"json": (BODY,)},
    "boathook_billing/receipts.py": {"json": (OURS,)},
    "boathook_billing/simulator.py": {"json": (OURS,)},
    "boathook_billing/tilda_simulator.py": {"form": (OURS,), "json": (OURS,)},
    "boathook_billing/tilda.py": {"form": (BODY, "boathook_billing.tilda:_MAX_FIELDS")},
    "boathook_cashdesk/catalogue.py": {"json": (OURS,)},
    "boathook_cashdesk/fiscal.py": {"json": (OURS,)},
    "boathook_cashdesk/ledger.py": {"json": (OURS,)},
    "boathook_cashdesk/receiver.py": {"json": (OURS,)},
    "boathook_cashdesk/sending.py": {"json": ("settings:outbound.max_response",)},
    "boathook_cashdesk/simulator.py": {"json": (OURS,)},
    "boathook_fleet/dead_letters.py": {"json": (OURS,)},
    "boathook_fleet/log.py": {"json": (BODY,)},
    "boathook_fleet/parse.py": {"json": (BODY,), "clean": ("boathook_fleet.parse:MAX_DEPTH",)},
    "boathook_fleet/records.py": {"json": (OURS,)},
    "boathook_fleet/ruby.py": dict.fromkeys(("_hash", "_key", "_list", "value"), ("boathook_fleet.ruby:MAX_DEPTH",)),
    "boathook_fleet/fetching.py": {"json": (OURS,)},
    "boathook_fleet/rentprog_api.py": {"json": ("boathook_fleet.rentprog_api:MAX_BYTES",)},
    "boathook_fleet/timeline.py": {"json": (OURS,)},
    "boathook_fleet/owner_events.py": {"json": (OURS,)},
    "boathook_fleet/sending.py": {"json": (OURS,)},
    "boathook_fleet/example_requests.py": {"json": (OURS,), "write_hash": (OURS,)},
    "boathook_music/callbacks.py": {"json": (OURS,)},
    "boathook_music/client_events.py": {"json": (OURS,)},
    "boathook_music/commands.py": {"json": (OWNER,)},
    "boathook_app_tools/simulation.py": {"json": (OURS,)},
    "boathook_music/lookup.py": {"json": ("boathook_music.lookup:MAX_BYTES",)},
    "boathook_music/tracks.py": {"json": (OURS,)},
    "boathook_app_tools/storage.py": {"_walk": (OURS,)},
    "boathook_app_tools/table_import.py": {"json": (OWNER,)},
    "boathook_app_tools/terminal.py": {"plain": (OURS,)},
    "cli/commands.py": {"complete_group": (OURS,)},
    "cli/apps.py": {"_hidden": (OWNER,), "_configured_table": (OWNER,)},
    "boathook_dev/event_feed.py": {"json": (OURS,)},
    "cli/options.py": {"json": (OWNER,)},
    "cli/sources.py": {"json": (OWNER,)},
    "cli/config.py": {"json": (OURS,)},
    "cli/output.py": {"plain": (OURS,)},
    "cli/spool.py": {"json": (OURS,)},
    "config/notifications.py": {"toml": (OURS,)},
    "config/faults.py": {"_is_table": (OWNER,)},
    "config/loader.py": {"json": (OWNER,), "toml": (OWNER,), "_references": (OWNER,), "add_overrides": (OWNER,)},
    "config/stored_sources.py": {"_parts": (API, DEPTH)},
    "config/tables.py": {"json": (OWNER,), "_resolved": (OWNER,), "_texts": (OWNER,)},
    "domain/json_document.py": {"json": (BODY, DEPTH, "boathook.domain.json_document:MAX_DIGITS"), "without": (OWNER,)},
    "domain/filters.py": dict.fromkeys(
        ("_branches", "_compile", "_compile_part"),
        (API, "boathook.domain.filters:MAX_NESTING", "boathook.domain.filters:MAX_CONDITIONS"),
    ),
    "domain/json_text.py": {"json": ("boathook.domain.json_text:MAX_LENGTH",)},
    "handlers/event.py": {"json": (BODY,)},
    "ingest/secrets_cache.py": {"json": (OURS,)},
    "ingest/stored_sources_file.py": {"json": (OURS,)},
    "ingest/event_builder.py": {"json": (OURS,)},
    "providers/request_reader.py": {"json": (BODY, DEPTH), "_struct": (OWNER,), "_expand": (BODY, DEPTH)},
    "verification/dedup_keys.py": {"json": (BODY,)},
    "verification/check.py": {"make_check": (OWNER,)},
    "verification/public_keys.py": {"key": ("boathook.verification.public_keys:MAX_TEXT",)},
    "ingest/quarantine.py": {"form": (HEAD,)},
    "verification/json_schema.py": {"json": (SCHEMA, DEPTH), "_check_parts": (SCHEMA, DEPTH), "_unknown_keywords": (SCHEMA, DEPTH)},
    "verification/provider_keys.py": {"json": (OURS,), "key": (OURS,)},
    "verification/provider_signer.py": {"_put": (OURS,), "_set_json_value": (OURS,)},
    "boathook_otel/gateway.py": {"json": (OURS,)},
    "boathook_rabbitmq/due_lane.py": {"json": ("boathook_rabbitmq.due_lane:_MAX_BYTES",)},
    "db/alerts.py": {"json": (OURS,)},
    "db/applications.py": {"json": (OURS,)},
    "db/batches.py": {"json": (BODY, DEPTH), "_cut": (BODY, DEPTH)},
    "db/pubsub.py": {"json": (OURS,)},
    "db/deliveries.py": {"json": (OURS,)},
    "db/queries/endpoint_stats.py": {"json": (OURS,)},
    "db/endpoints.py": {"json": (OURS,)},
    "db/event_types.py": {"json": (OURS,)},
    "db/events.py": {"json": (API,)},
    "db/queries/listings.py": {"json": (OURS,)},
    "db/route_registry.py": {"json": (OURS,)},
    "db/resends.py": {"json": (OURS,)},
    "db/rerouting.py": {"json": (OURS,)},
    "db/endpoint_deliveries.py": {"json": (OURS,)},
    "db/live_settings.py": {"json": (OURS,)},
    "db/tasks.py": {"json": (OURS,)},
    "db/queries/event_history.py": {"json": (OURS,)},
    "db/integrity_runs.py": {"json": (OURS,)},
    "boathook_alert_channels/sending.py": {"json": ("boathook.alerts.notifier:_MAX_ANSWER",)},
    "http_client/oauth.py": {"json": ("boathook.http_client.oauth:_MAX_BODY",)},
    "http_client/download.py": {"json": (OURS,)},
    "server/child.py": {"json": (OURS,)},
    "boathook_dev/developer.py": {"json": ("boathook_dev.developer:_MAX_LINE_BYTES",)},
    "boathook_cells/forwarding.py": {
        "json": ("boathook_cells.forwarding:_MAX_ANSWER", "boathook_cells.forwarding:_MAX_PENDING")
    },
    "boathook_cells/status.py": {"json": ("boathook_cells.status:_MAX_METRICS",)},
    "boathook_cells/finder.py": {"json": ("boathook_cells.finder:_MAX_ANSWER",)},
    "service/remote.py": {"json": ("boathook.service.remote:_MAX_ERROR_BYTES",)},
    "service/receiving/stored_sources.py": {"json": (OURS,)},
    "service/receiving/source_fields.py": {"json": (FORM, OWNER)},
    "service/receiving/source_trial.py": {"json": (OURS, "boathook.service.receiving.source_trial:_MAX_BYTES")},
    "server/fork_server.py": {"json": (OURS,)},
    "server/sampler.py": {"json": (OURS,)},
    "spool/segment_store.py": {"oldest": (OURS,)},
    "observability/live_metrics.py": {"json": (OURS,)},
    "observability/metric_snapshot.py": {"json": (OURS,)},
    "observability/log.py": {"_redact_value": ("boathook.observability.log:_MAX_ELEMENTS",)},
    "verification/library.py": {"json": (OWNER,)},
}  # fmt: skip


def found_in(source: str) -> set[str]:
    """Return the kinds of parsers that a module names, and its functions that walk a value by calling themselves."""
    tree = ast.parse(source)
    names = {_dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
    return {kind for kind, calls in PARSERS.items() if calls & names} | set(_recursive(tree))


def _dotted(node: ast.expr) -> str:
    """Return a dotted name; parts that are no names, such as calls, become a question mark."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _recursive(tree: ast.Module) -> Iterator[str]:
    """Yield functions, and methods, that call themselves, also by way of others of their module or class."""
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for scope in scopes:
        functions = [node for node in scope.body if isinstance(node, ast.FunctionDef)]
        calls = {one.name: _called(one, is_method=scope is not tree) for one in functions}
        for name, called in calls.items():
            seen, to_see = set[str](), called & calls.keys()
            while to_see:
                seen |= to_see
                to_see = {further for one in to_see for further in calls[one]} & calls.keys() - seen
            if name in seen:
                yield name


def _called(function: ast.FunctionDef, *, is_method: bool) -> set[str]:
    """Return the names of its scope that a function calls or passes to a call, such as to map()."""
    own = {one.arg for one in [*function.args.args, *function.args.kwonlyargs]}
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    now = [call for call in calls if not _dotted(call.func).endswith(LATER)]
    named = [node for call in now for node in (call.func, *call.args)]
    if is_method:
        return {node.attr for node in named if isinstance(node, ast.Attribute) and _dotted(node.value) == "self"}
    return {node.id for node in named if isinstance(node, ast.Name)} - own


def found() -> dict[str, set[str]]:
    """Return the parsers of each module, which is named by its path below ``boathook`` or ``src``."""
    files = [(file.relative_to(folder), file) for folder in SOURCES for file in folder.rglob("*.py")]
    files = [(name.relative_to("boathook") if name.parts[0] == "boathook" else name, file) for name, file in files]
    served = [(name, file) for name, file in files if name.parts[0] not in NOT_SERVED]
    return {name.as_posix(): kinds for name, file in served if (kinds := found_in(file.read_text()))}


def test_every_parser_is_registered_with_its_limits():
    entered = {name: set(caps) for name, caps in CAPS.items()}
    assert found() == entered, "enter new parsers in CAPS with what bounds them, and take out those that are gone"


def test_every_limit_is_a_number_in_the_code():
    settings = config.load(None, {})
    named = {cap for caps in CAPS.values() for one in caps.values() for cap in one} - {OURS, OWNER}
    assert all(_number(cap, settings) > 0 for cap in named)


def _number(cap: str, settings: config.Settings) -> float:
    module, _, name = cap.partition(":")
    return attrgetter(name)(settings if module == "settings" else importlib.import_module(module))


def test_an_unregistered_parser_is_detected():
    """The mutant: modules that bring a parser, or a walk without an end."""
    assert found_in("import yaml\nload = yaml.safe_load") == {"yaml"}
    assert found_in("async def f(text):\n    return await to_thread(json.loads, text)") == {"json"}
    assert found_in("def walk(value):\n    return list(map(walk, value))") == {"walk"}
    assert found_in("def a(v):\n    return b(v)\ndef b(v):\n    return a(v)") == {"a", "b"}
    assert found_in("class A:\n    def f(self, v):\n        return self.f(v)") == {"f"}
    assert found_in("def f(v):\n    return g(v)\ndef g(v):\n    return v") == set()
