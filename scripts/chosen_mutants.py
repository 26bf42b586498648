"""Changes of the code that a reviewer would fear, chosen by hand; `scripts.mutants --chosen` makes them.

Each replaces one text of a module by another, and names the tests that must notice it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec


class ChosenMutant(msgspec.Struct, frozen=True):
    """One change, and the tests that must fail with it."""

    module: str
    """The module's path below the package's folder."""
    old: str
    """A text that the module has once."""
    new: str
    tests: Sequence[str]
    """Arguments of pytest."""
    lives: str = ""
    """Why no test can notice it; empty for a change that must be noticed."""

    def apply(self, source: str) -> str:
        """Return the changed module.

        Raises:
            ValueError: the module does not have the text, or has it twice.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.module} has this {source.count(self.old)} times instead of once: {self.old}")
        return source.replace(self.old, self.new)


_APP: Final = ("-m", "not soak")
"""Tests of apps are left out otherwise, and a run without tests would look as if a change had been noticed."""
_NUMBERS: Final = ("tests/postgres/catalogue/test_numbers_agree.py",)
_CATALOGUE: Final = ("tests/postgres/catalogue/test_catalogue.py",)
_EVENT_OPERATIONS: Final = ("tests/postgres/operating/test_event_operations.py",)
_TENANTS: Final = ("tests/postgres/catalogue/test_catalogue_tenants.py",)
_BATCH: Final = ("tests/unit/test_batch.py",)
_BUFFER: Final = ("tests/postgres/rabbitmq/test_buffer.py",)
_MQ: Final = "boathook_rabbitmq"
_MCP: Final = ("tests/postgres/mcp/test_mcp.py",)
_RETRY_ON: Final = ("tests/unit/test_retry_on.py",)
_DUE_TIMES: Final = ("tests/simulation/test_due_times.py",)
_DUE_PUBLISHERS: Final = ("tests/postgres/rabbitmq/test_due_publishers.py",)
_CELLS: Final = ("tests/unit/test_cells.py",)
_SOURCE_MOVES: Final = ("tests/postgres/cells/test_cells.py",)
_MOVES: Final = ("tests/postgres/cells/test_cell_applications.py",)
_PASSING: Final = ("tests/postgres/cells/test_cells_app.py",)
_SPOOL: Final = ("tests/unit/test_spool.py", "tests/unit/test_spool_survey.py", "tests/security/test_spool.py")
_OIDC: Final = ("tests/unit/test_oidc.py",)
_USER_TOKENS: Final = ("tests/unit/test_user_tokens.py",)
_MOUNT_ACCESS: Final = ("tests/postgres/server/test_mount_access.py",)
_OPERATOR_TOKENS: Final = ("tests/postgres/access/test_operator_tokens.py",)
_REMOTE: Final = ("tests/unit/test_remote_server.py",)
_OPERATORS: Final = ("tests/postgres/access/test_operators.py",)
_CONSOLE: Final = ("tests/security/test_console.py",)
_CALLS: Final = ("tests/postgres/api/test_api_calls.py",)
_APPLICATIONS: Final = ("tests/postgres/api/test_api_applications.py",)
_PUBLISH: Final = ("tests/postgres/sending/test_publish.py",)
_DESTINATIONS: Final = ("tests/postgres/sending/test_destinations.py",)
_GROUP_COMMIT: Final = ("tests/unit/test_group_commit.py",)
_MESSAGE_RULES: Final = ("tests/postgres/sending/test_message_rules.py",)
_OUTBOX: Final = ("tests/postgres/sending/test_outbox.py",)
_BUFFERED: Final = ("tests/postgres/sending/test_buffered_publishing.py",)
_ACCESS: Final = (*_BUFFERED, "-k", "File or revoked or keys or max_age or clock or sleep")
_LATE: Final = (*_BUFFERED, "-k", "equal_ids or draining_again or lost_response or late")
_STANDBY: Final = ("tests/faults/test_standby.py", "-m", "not soak", "-k", "waits_for_the_standby")
_IMPORT: Final = ("tests/apps/test_table_import.py", *_APP)
_VIEWS: Final = ("tests/apps/test_compatibility_views.py", *_APP)
_APP_ALERTS: Final = ("tests/postgres/operating/test_app_alerts.py",)
_WAIT_FOR: Final = ("tests/postgres/handlers/test_wait_for.py",)
_CHAINS: Final = ("tests/postgres/handlers/test_event_chains.py",)
_APP_METRICS: Final = ("tests/postgres/operating/test_app_metrics.py",)
_CONTINUED: Final = ("tests/apps/billing/test_owner_tables.py", "-k", "only_open_and_verified", *_APP)
_YOOKASSA: Final = ("tests/apps/billing/test_yookassa.py", "-k", "confirm or older", *_APP)
_DUNNING: Final = ("tests/apps/billing/test_dunning.py", "-k", "steps_are or canceled_subscription_ends", *_APP)
_RECEIPTS: Final = ("tests/apps/billing/test_receipts.py", "-k", "arrives_first", *_APP)
_SUPPORT: Final = ("tests/apps/billing/test_staff_pages.py", "-k", "noted_refund", *_APP)

CHOSEN: Final[Mapping[str, Sequence[ChosenMutant]]] = {
    "destinations": (
        ChosenMutant(
            "service/sending/destinations.py",
            "outbound.destinations if work.caller.may(Permission.DESTINATION_CHOOSE) else outbound.tenant_destinations",
            "outbound.destinations",
            _DESTINATIONS,
        ),
        ChosenMutant(
            "service/sending/destinations.py",
            "    if not isinstance(name, str) or name not in allowed:",
            "    if not isinstance(name, str) or find_kind(name) is None:",
            _DESTINATIONS,
        ),
        ChosenMutant(
            "service/sending/destinations.py",
            "if field.rule.is_secret}",
            "if field.name is None}",
            _DESTINATIONS,
        ),
        ChosenMutant(
            "delivery/endpoint_executor.py",
            "find_kind(name) if name in self._settings.outbound.destinations else None",
            "find_kind(name)",
            _DESTINATIONS,
        ),
    ),
    "imports": (
        ChosenMutant(
            "boathook_app_tools/table_import.py",
            "if key not in imported or imported[key]",
            "if key in imported and imported[key]",
            _IMPORT,
        ),
        ChosenMutant(
            "boathook_app_tools/table_import.py",
            "        except BadValue as error:\n            return error\n        except Exception",
            '        except BadValue:\n            return ["imported"] * len(rows)\n        except Exception',
            _IMPORT,
        ),
        ChosenMutant(
            "boathook_app_tools/table_import.py",
            "            raise _DryRunEnd\n",
            "            return report\n",
            _IMPORT,
        ),
        ChosenMutant("boathook_app_tools/table_import.py", "or {key} is null limit 1", "limit 1", _IMPORT),
        ChosenMutant("boathook_app_tools/table_import.py", "!= imported.target_sha256:", '== b"":', _IMPORT),
        ChosenMutant(
            "boathook_billing/owner_tables.py",
            '    if row["status"] in _OPEN and row["signature_valid"]:\n        event_id',
            '    if row["status"] in _OPEN:\n        event_id',
            _CONTINUED,
        ),
        ChosenMutant(
            "boathook_app_tools/compatibility_views.py", "    if existing:\n", "    if not existing:\n", _VIEWS
        ),
    ),
    "payments": (
        ChosenMutant("boathook_billing/yookassa.py", 'if document.get("id") != id:', "if not document:", _YOOKASSA),
        ChosenMutant(
            "boathook_billing/yookassa.py",
            "if _PROGRESS.get(status, 0) < _PROGRESS.get(notified.status, 0):",
            "if status not in _PROGRESS:",
            _YOOKASSA,
        ),
        ChosenMutant(
            "boathook_billing/dunning.py",
            "if planned_until is None or step.at > planned_until",
            "if done is None or step.at >= done",
            _DUNNING,
        ),
        ChosenMutant(
            "boathook_billing/dunning.py",
            'return end if row["status"] == "CANCELED" else end +',
            "return end +",
            _DUNNING,
        ),
        ChosenMutant(
            "boathook_billing/receipts.py",
            'or (is_refund and not payment.is_applied and not history["is_reported"])',
            "or (is_refund and payment.is_applied)",
            _RECEIPTS,
        ),
        ChosenMutant(
            "boathook_billing/operator_actions.py",
            '    if row["status"] != Status.SUCCEEDED:\n        raise',
            '    if row["status"] == Status.FAILED:\n        raise',
            _SUPPORT,
        ),
    ),
    "numbers": (ChosenMutant("config/types.py", ", allow_inf_nan=False", "", _NUMBERS),),
    "app-alerts": (
        ChosenMutant("alerts/evaluator.py", "renewed_at <= alert.notified_at", "False", _APP_ALERTS),
        ChosenMutant(
            "alerts/checks.py",
            'meters.count("boathook_alert_checks_failed_total", rule=rule)',
            "self._results[rule] = _Result([], time.monotonic())",
            _APP_ALERTS,
        ),
        ChosenMutant("db/alerts.sql", "and (r.id is null or t.id > r.id)", "", _APP_ALERTS),
        ChosenMutant("db/alerts.sql", "k.last_at + make_interval(secs => s.over_s) < f.first_at", "false", _APP_ALERTS),
        ChosenMutant(
            "db/alerts.sql",
            "where rule <> all ($1::text[]) and at < now() - interval '1 day'",
            "where rule <> all ($1::text[])",
            _APP_ALERTS,
        ),
    ),
    "app-metrics": (
        ChosenMutant("db/metric_samples.py", "            if app_metrics:\n", "            if False:\n", _APP_METRICS),
        ChosenMutant("db/metric_samples.py", "sample.snapshot.only(app_metrics)", "one.snapshot", _APP_METRICS),
        ChosenMutant(
            "db/metric_samples.py",
            "(*RETENTION_S.items(), (APP_STEP_S, APP_RETENTION_S))",
            "RETENTION_S.items()",
            _APP_METRICS,
        ),
    ),
    "chains": (
        ChosenMutant(
            "db/functions/publish_message.sql",
            "coalesce((select c.first_id from boathook.event_cause c where c.event_id = d.cause_id), d.cause_id)",
            "d.cause_id",
            _CHAINS,
        ),
        ChosenMutant(
            "db/functions/publish_message.sql",
            "from done d where d.verdict is null and d.cause_id is not null",
            "from done d where d.cause_id is not null and d.id is null",
            _CHAINS,
        ),
        ChosenMutant("db/delivery_commands.sql", " or {first_source} = $1", "", _CHAINS),
        ChosenMutant(
            "service/operating/dead_letters.py",
            "Selection(ListFilter(), [key]), ignored",
            'Selection(ListFilter(code="other"), [key]), ignored',
            _CHAINS,
        ),
    ),
    "operations": (
        ChosenMutant(
            "service/catalogue/operation.py",
            "        self.check_caller(work)\n        self.check_input(input)\n",
            "",
            _CATALOGUE,
        ),
        ChosenMutant(
            "service/catalogue/operation.py", "self.scope is Scope.DEPLOYMENT and caller", "caller", _CATALOGUE
        ),
        ChosenMutant(
            "db/delivery_commands.sql",
            "and ($10::text is null or {organization} = $10)",
            "and $10::text is distinct from ''",
            _TENANTS,
        ),
        ChosenMutant(
            "db/dead_letter_groups.sql",
            "and ($5::text is null or {organization} = $5)",
            "and $5::text is distinct from ''",
            _TENANTS,
        ),
        ChosenMutant("service/catalogue/selection.py", '"tenant": work.caller.tenant', '"tenant": None', _TENANTS),
        ChosenMutant(
            "service/catalogue/selection.py", '"caller": dict(work.caller.frozen())', '"caller": {}', _TENANTS
        ),
        ChosenMutant(
            "service/catalogue/events.py", "input.compile(organization=work.caller.tenant)", "input.compile()", _TENANTS
        ),
        ChosenMutant("db/rerouting.py", "            if is_dry_run:\n", "            if False:\n", _EVENT_OPERATIONS),
        ChosenMutant(
            "db/queries/event_search.py",
            'request.get("matching")',
            "None",
            _EVENT_OPERATIONS,
        ),
    ),
    "waits": (
        ChosenMutant(
            "db/functions/record_wait.sql",
            "select case when is_signalled or d.woken_by is not null then ended",
            "select case when d.woken_by is not null then ended",
            (*_WAIT_FOR, "-k", "between_look"),
        ),
        ChosenMutant(
            "db/functions/record_wait.sql",
            "pg_visible_in_snapshot(s.xid, w.snapshot), false)",
            "false, false)",
            (*_WAIT_FOR, "-k", "old_signal"),
        ),
        ChosenMutant(
            "db/functions/record_wait.sql",
            "where s.key = p_key and s.xid is distinct from w.woken_by",
            "where s.key = p_key",
            (*_WAIT_FOR, "-k", "costs_no_attempt"),
        ),
        ChosenMutant(
            "db/functions/record_wait.sql",
            "attempts_before = attempts, free_retries = 0, crashes = 0,",
            "crashes = 0,",
            (*_WAIT_FOR, "-k", "costs_no_attempt"),
        ),
        ChosenMutant(
            "db/deliveries.sql",
            " or (w.event_id, w.ordinal) in (select event_id, ordinal from begun))",
            ")",
            (*_WAIT_FOR, "-k", "compared_before"),
        ),
        ChosenMutant(
            "db/deliveries.sql",
            "where id in (select id from fresh) and key not in (select key from held)",
            "where id in (select id from fresh)",
            (*_WAIT_FOR, "-k", "transaction_holds"),
        ),
    ),
    "retries": (
        ChosenMutant(
            "handlers/dependency_errors.py",
            "status == _TOO_MANY_REQUESTS or 500 <= status <= 599",
            "status >= 400",
            _RETRY_ON,
        ),
        ChosenMutant(
            "handlers/dependency_errors.py", "if isinstance(error, ValueError):\n        return False", "", _RETRY_ON
        ),
        ChosenMutant(
            "handlers/dependency_errors.py",
            "if _status(error) is None or not is_transient(error):",
            "if _status(error) is None:",
            _RETRY_ON,
        ),
        ChosenMutant(
            "handlers/runner.py",
            "any(isinstance(part, handler.final) for part in (error, *leaves(error)))",
            "False",
            _RETRY_ON,
        ),
        ChosenMutant("handlers/handler.py", "    _check_retried(handler)\n", "", _RETRY_ON),
        ChosenMutant(
            "delivery/endpoint_recorder.py",
            "if health.has_opened and health.open_until is not None:",
            "if health.open_until is not None:",
            ("tests/postgres/delivery/test_sender.py", "-k", "one_probe_across_senders"),
        ),
        ChosenMutant(
            "alerts/evaluator.py",
            "alert_store.count_causes(connection, opened,",
            "alert_store.count_causes(connection, (),",
            ("tests/postgres/operating/test_alerts.py", "-k", "other_causes"),
        ),
    ),
    "broker": (
        ChosenMutant(f"{_MQ}/connection.py", "publisher_confirms=True", "publisher_confirms=False", _BUFFER),
        ChosenMutant(f"{_MQ}/connection.py", "mandatory=True", "mandatory=False", _BUFFER),
        ChosenMutant(f"{_MQ}/due_lane.py", "append((recipient, due_at))", "append((recipient, 0.0))", _DUE_TIMES),
        ChosenMutant(f"{_MQ}/due_lane.py", "due = unnamed", "due = []", _DUE_TIMES),
        ChosenMutant("delivery/due_receiver.py", "if wait_s <= _MAX_WAIT_S:", "if wait_s <= 0:", _DUE_TIMES),
        ChosenMutant("delivery/due_receiver.py", "wait_s < self._notifier.min_wait_s:", "wait_s < 0:", _DUE_TIMES),
        ChosenMutant(
            "delivery/dispatcher.py",
            "self._clock.sync(await delivery_commands.read_clock(self._database))",
            "pass",
            _DUE_TIMES,
        ),
        ChosenMutant(f"{_MQ}/queues.py", '"x-overflow": "reject-publish"', '"x-overflow": "drop-head"', _BUFFER),
        ChosenMutant(
            f"{_MQ}/queues.py",
            'arguments["x-delivery-limit"] = -1',
            'arguments["x-delivery-limit"] = 20',
            _BUFFER,
        ),
        ChosenMutant(
            f"{_MQ}/batch.py",
            "(batch.series, batch.first) != (last.series, last.last + 1)",
            "batch.series != last.series",
            _BATCH,
        ),
        ChosenMutant(
            f"{_MQ}/batch.py",
            "is_whole = len(payload) == length and zlib.crc32(payload) == checksum",
            "is_whole = len(payload) == length",
            _BATCH,
        ),
        ChosenMutant(
            f"{_MQ}/buffer.py",
            "no other may follow it in the same series.\n        self._current = UNNUMBERED\n",
            "no other may follow it in the same series.\n",
            _BUFFER,
        ),
        ChosenMutant(
            f"{_MQ}/buffer.py",
            "await connection.publish(self._queue, message, self._confirm_s)\n        series.confirmed += count\n",
            "series.confirmed += count\n        await connection.publish(self._queue, message, self._confirm_s)\n",
            _BUFFER,
        ),
        ChosenMutant(f"{_MQ}/buffer.py", "elif len(self._pending) >= MAX_PENDING:", "elif False:", _BUFFER),
        ChosenMutant(
            f"{_MQ}/buffer.py",
            "encode_batch(number, last + 1, ())",
            "encode_batch(number, last, ())",
            _BUFFER,
        ),
        ChosenMutant(f"{_MQ}/buffer.py", "        self.losses += waiting > 0\n", "", _BUFFER),
        ChosenMutant(
            f"{_MQ}/gateway_buffer.py",
            "if self.spool is None or not self.broker.is_empty:",
            "if self.spool is None:",
            _BUFFER,
        ),
        ChosenMutant(
            f"{_MQ}/gateway_buffer.py",
            "if self.spool is not None and not self.spool.is_empty:",
            "if self.spool is not None and False:",
            _BUFFER,
        ),
        ChosenMutant(f"{_MQ}/drain.py", "if batch is None or None in batch.payloads:", "if batch is None:", _BUFFER),
        ChosenMutant(f"{_MQ}/drain.py", "await _keep_refused(connection, record, reason)", "pass", _BUFFER),
        ChosenMutant(
            "db/buffer_marks.sql",
            "sequence = greatest(m.sequence, excluded.sequence)",
            "sequence = excluded.sequence",
            _BUFFER,
        ),
        ChosenMutant(
            "db/buffer_marks.sql",
            "coalesce(excluded.last_event_at, m.last_event_at)",
            "excluded.last_event_at",
            _BUFFER,
        ),
        ChosenMutant(
            "boathook_redis/leases.py",
            "        call.cancel()\n        self._drop()\n",
            "        call.cancel()\n",
            ("tests/postgres/redis/test_rate_leases.py", "-k", "redis or hang"),
            lives="the library itself closes a connection whose call is cancelled",
        ),
    ),
    "cells": (
        ChosenMutant(
            "boathook_cells/forwarding.py", "abs(time.time() - int(stamp))", "time.time() - int(stamp)", _CELLS
        ),
        ChosenMutant(
            "boathook_cells/forwarding.py",
            'if body is None or _digest(body).encode() != headers[b"content-digest"]:',
            "if body is None:",
            _CELLS,
        ),
        ChosenMutant("boathook_cells/forwarding.py", " and not isinstance(error, NotPassedOn)\n", "\n", _CELLS),
        ChosenMutant("boathook_cells/forwarding.py", " or len(receipts) != len(records):", ":", _CELLS),
        ChosenMutant("boathook_cells/forwarding.py", "            self._refused.discard(owner)\n", "", _CELLS),
        ChosenMutant(
            "boathook_cells/forwarding.py",
            "            self.hold(assignment.application)  # it is on its way back",
            "            pass  # it is on its way back",
            _CELLS,
        ),
        ChosenMutant(
            "boathook_cells/forwarding.py",
            "(home not in self._stores or event.source in self._refused)",
            "home not in self._stores",
            _CELLS,
        ),
        ChosenMutant(
            "boathook_cells/store.sql",
            "not is_operational and home is null\n    and (id",
            "not is_operational\n    and (id",
            _SOURCE_MOVES,
        ),
        ChosenMutant(
            "boathook_cells/store.sql",
            "where organization = $1 and deleted_at is null and not is_operational and home is null",
            "where $1::text is not null and deleted_at is null and not is_operational and home is null",
            _SOURCE_MOVES,
        ),
        ChosenMutant(
            "boathook_cells/store.sql",
            "routes_version = routes_version - 1",
            "routes_version = routes_version",
            _MOVES,
            lives="the old cell's row is raised twice when it closes, so that it is the later one in any case",
        ),
        ChosenMutant("boathook_cells/store.sql", "greatest(routes_version, $3) + 1", "routes_version + 1", _MOVES),
        ChosenMutant(
            "boathook_cells/moves.py",
            "is_unclear = is_repeated or bool(present.disagreeing)",
            "is_unclear = is_repeated",
            _SOURCE_MOVES,
        ),
        ChosenMutant("boathook_cells/moves.py", "if name == present.cell and not changed:", "if False:", _SOURCE_MOVES),
        ChosenMutant(
            "boathook_cells/moves.py",
            "    document = await store.export_application(databases[origin], id)\n    copied",
            "    copied",
            _MOVES,
        ),
        ChosenMutant(
            "boathook_cells/moves.py",
            "(await _read_applications(databases, id)).keys() - {target}",
            "{origin}",
            _MOVES,
        ),
        ChosenMutant(
            "boathook_cells/store.py", 'max(row["memory_days"], min_memory_days)', 'row["memory_days"]', _PASSING
        ),
        ChosenMutant("boathook_cells/keys.sql", "(e.source = $1 or e.id is null)", "e.source = $1", _SOURCE_MOVES),
    ),
    "spool": (
        ChosenMutant(
            "spool/disk.py",
            "            os.fsync(descriptor)\n            sync_folder(path.parent)\n",
            "            os.fsync(descriptor)\n",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/disk.py", "old.rename(new)\n        sync_folder(new.parent)\n", "old.rename(new)\n", _SPOOL
        ),
        ChosenMutant(
            "spool/disk.py",
            "os.ftruncate(self._descriptor, size)\n                os.fsync(self._descriptor)\n",
            "os.ftruncate(self._descriptor, size)\n",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/disk.py",
            "is_ours = any(try_lock(descriptor) for _ in range(LOCK_TRIES))",
            "is_ours = True",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/segment_store.py",
            "self._failures += error.errno not in _DISK_FULL_ERRORS",
            "self._failures += 1",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/segment_store.py",
            "if self.size + room > self._bounds.max_bytes:",
            "if self.size > self._bounds.max_bytes:",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/segment_store.py", "segment.framer.seal(self._next - 1)", "segment.framer.seal(self._next)", _SPOOL
        ),
        ChosenMutant(
            "spool/segment_store.py",
            "if name != self._name and is_old and not",
            "if name != self._name and not",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/segment_store.py",
            "        lock = self._disk.lock(folder)\n        if lock is not None:\n            try:\n"
            "                self._disk.remove_folder(folder)\n            finally:\n                lock.release()\n",
            "        self._disk.remove_folder(folder)\n",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/segment_store.py", "DAMAGED_SUFFIX if segment.is_damaged else DONE_SUFFIX", "DONE_SUFFIX", _SPOOL
        ),
        ChosenMutant(
            "spool/segment_store.py",
            "        lock = self._disk.lock(folder)\n        if lock is None:\n            return False\n        try:\n"
            "            # Its last holder may have drained segments between the check and the lock.\n"
            "            segments = deque(self._found(path) for path in self._left_in(folder))\n"
            "        except OSError:\n            lock.release()\n            raise\n",
            "        segments = deque(self._found(path) for path in self._left_in(folder))\n"
            "        lock = self._disk.lock(folder)\n        if lock is None:\n            return False\n",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/segment_store.py",
            'unfinished = path.with_suffix(".new")',
            "unfinished = path",
            _SPOOL,
        ),
        ChosenMutant(
            "spool/segment_store.py",
            "waiting.failures += error.errno not in _RESOURCE_ERRORS",
            "waiting.failures += 1",
            _SPOOL,
        ),
        ChosenMutant("spool/segment.py", "min(last, synced) - lowest + 1", "last - lowest + 1", _SPOOL),
        ChosenMutant(
            "spool/spool.py",
            "if self._writer is None or len(self._pending) >= self._queue_size:",
            "if self._writer is None:",
            _SPOOL,
        ),
        ChosenMutant("spool/spool.py", "if asyncio.get_running_loop().time() - due < TICK_S:", "if True:", _SPOOL),
        ChosenMutant("spool/inspection.py", "fcntl.LOCK_SH | fcntl.LOCK_NB", "fcntl.LOCK_EX", _SPOOL),
    ),
    "auth": (
        ChosenMutant("db/api_keys.sql", "a.deleted_at is null and a.organization", "a.organization", _APPLICATIONS),
        ChosenMutant("db/api_keys.sql", "least(expires_at, now() + $3::interval)", "now() + $3::interval", _CALLS),
        ChosenMutant(
            "db/api_keys.sql",
            "where organization = $1 and is_portal and",
            "where $1::text is not null and is_portal and",
            _CALLS,
        ),
        ChosenMutant(
            "boathook_outage_publishing/store.sql",
            "application_id is null and revoked_at is null and not",
            "application_id is null and not",
            _ACCESS,
        ),
        ChosenMutant(
            "cli/remote.py", 'if parts.scheme != "https" and not _is_loopback(address.host):', "if False:", _REMOTE
        ),
        ChosenMutant("cli/remote.py", 'if host == "localhost":', 'if host.startswith(("localhost", "127.")):', _REMOTE),
        ChosenMutant("cli/remote.py", "if usual and check_url(usual, SERVER_VARIABLE) != url:", "if False:", _REMOTE),
        ChosenMutant("cli/remote.py", "stat.S_IMODE(status.st_mode) & 0o077 or", "", _REMOTE),
        ChosenMutant("cli/remote.py", " or status.st_uid != os.geteuid()", "", _REMOTE),
        ChosenMutant(
            "cli/remote.py", "if options.server is not None or options.api_key is not None:", "if False:", _REMOTE
        ),
        ChosenMutant("db/operators.sql", "s.expires_at > now() and s.seen_at", "s.seen_at", _OPERATORS),
        ChosenMutant(
            "db/operator_tokens.sql",
            "t.token_sha256 = $1 and t.revoked_at is null and",
            "t.token_sha256 = $1 and",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "db/operator_tokens.sql", "t.expires_at > now() and o.disabled_at", "o.disabled_at", _OPERATOR_TOKENS
        ),
        ChosenMutant(
            "db/operator_tokens.sql",
            "t.expires_at > now() and o.disabled_at is null",
            "t.expires_at > now()",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant("db/operator_tokens.sql", " for update skip locked", "", _OPERATOR_TOKENS),
        ChosenMutant(
            "db/operator_tokens.sql",
            "($2::uuid is null or operator_id = $2) and",
            "$2::uuid is distinct from id and",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "service/access/operator_tokens.py",
            "Role(usable.role).at_most(Role(usable.operator_role))",
            "Role(usable.role)",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "service/access/operator_tokens.py",
            "Role(usable.role).at_most(Role(usable.operator_role))",
            "Role(usable.operator_role)",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "service/access/operator_tokens.py",
            "role is not None and not Role(owner.role).covers(role)",
            "False",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "service/access/operator_tokens.py", "if isinstance(work.caller, ApiCaller):", "if False:", _OPERATOR_TOKENS
        ),
        ChosenMutant("service/access/operator_tokens.py", "    rates.check(sha256, client)\n", "", _OPERATOR_TOKENS),
        ChosenMutant("service/access/operator_tokens.py", "    rates.count_request(sha256)\n", "", _OPERATOR_TOKENS),
        ChosenMutant(
            "service/access/authorization.py",
            "return ACCESS_RULES[permission].is_for_operator_tokens and ",
            "return ",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "service/catalogue/operators.py",
            "    await operator_tokens.revoke_all(work.connection, operator.id)\n",
            "",
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "api/idempotency.py",
            'f"\\x00{principal.operator_id}\\x00{principal.role}"',
            '"default\\x00\\x00None"',
            _OPERATOR_TOKENS,
        ),
        ChosenMutant(
            "db/operators.sql", "s.seen_at > now() - $2::interval and", "$2::interval is not null and", _OPERATORS
        ),
        ChosenMutant(
            "db/operators.sql",
            "where role = 'admin' and disabled_at is null order by id for update",
            "where role = 'admin' and disabled_at is null order by id",
            _OPERATORS,
        ),
        ChosenMutant(
            "db/operators.sql",
            "where operator_id = $1 and name = $2 returning",
            "where $1::uuid is not null and name = $2 returning",
            _OPERATORS,
        ),
        ChosenMutant("service/access/operators.py", "        or operator.subject is not None\n", "", _OPERATORS),
        ChosenMutant(
            "service/access/operators.py", "if person.role is None and person.is_role_managed:", "if False:", _OPERATORS
        ),
        ChosenMutant(
            "boathook_oidc/provider.py",
            'if claims.get("azp", self._table.oidc_client_id) != self._table.oidc_client_id:',
            "if False:",
            _OIDC,
        ),
        ChosenMutant(
            "service/access/signing_keys.py",
            'options={"require": list(required)}',
            'options={"require": list(required), "verify_aud": False}',
            _OIDC,
        ),
        ChosenMutant("service/access/signing_keys.py", ' and key.public_key_use in {None, "sig"}', "", _OIDC),
        ChosenMutant("service/access/signing_keys.py", "key.algorithm_name in ALGORITHMS and ", "", _USER_TOKENS),
        ChosenMutant(
            "boathook_oidc/provider.py",
            'is_proven = table.oidc_name_claim != "email" or is_verified',
            "is_proven = True",
            _OIDC,
        ),
        ChosenMutant("service/access/login_rate.py", " and self._names.take(name)", "", _CONSOLE),
        ChosenMutant(
            "boathook_pages/security.py", "        if site is None:\n            raise CsrfError\n", "", _CONSOLE
        ),
        ChosenMutant(
            "boathook_pages/security.py",
            'not in {"same-origin", "none"}',
            'not in {"same-origin", "same-site", "none"}',
            _CONSOLE,
        ),
        ChosenMutant("api/idempotency.py", "\\x00{rights}", "", _CALLS),
        ChosenMutant("api/idempotency.py", "{principal.application_id or ''}", "", _CALLS),
        ChosenMutant(
            "boathook_outage_publishing/access_copy.py", "return max(now.wall", "return min(now.wall", _ACCESS
        ),
        ChosenMutant(
            "boathook_outage_publishing/access_copy.py",
            "if content.confirmed_at > now.wall + _MAX_SKEW_S:",
            "if False:",
            _ACCESS,
        ),
    ),
    "publishing": (
        ChosenMutant(
            "handlers/outbox.py", 'if answer not in {"outdated", "missing"}:', 'if answer != "outdated":', _OUTBOX
        ),
        ChosenMutant("handlers/outbox.py", "yield REPLICATE, REPLICATE_ARGUMENTS", "pass", _STANDBY),
        ChosenMutant(
            "handlers/outbox.py",
            "None if self.home else draft.message.deliver_at",
            "draft.message.deliver_at",
            _PASSING,
        ),
        ChosenMutant("handlers/outbox.py", "compiled.due(draft)", "None", _DUE_PUBLISHERS),
        ChosenMutant(
            "handlers/outbox.py",
            "check_message(draft.message, is_for_application=self.routing.application is not None)",
            "pass",
            _MESSAGE_RULES,
        ),
        ChosenMutant(
            "boathook_outage_publishing/publisher.py",
            "        check_message(message)\n        key",
            "        key",
            _BUFFERED,
        ),
        ChosenMutant("domain/messages.py", " or message.is_accepted:", ":", _MESSAGE_RULES),
        ChosenMutant(
            "db/resends.py",
            "number = await _count_revivable(connection, recipient, event_ids, died_by, has_canceled=False)",
            "number = await _count_revivable(connection, recipient, event_ids, died_by, has_canceled=True)",
            ("tests/postgres/delivery/test_tasks.py",),
        ),
        ChosenMutant("handlers/operational.py", "await notify_due(connection, due)", "pass", _DUE_PUBLISHERS),
        ChosenMutant("delivery/handler_executor.py", "self._notifier.notify(due)", "pass", _DUE_PUBLISHERS),
        ChosenMutant(
            "db/functions/publish_messages.sql",
            "            order by coalesce(m.replay_key, m.key), m.key\n",
            "",
            (*_PUBLISH, *_OUTBOX),
        ),
        ChosenMutant(
            "db/functions/publish_messages.sql",
            "(t.uid in (a.uid, a.imported_id)) is not true",
            "false",
            _OUTBOX,
            lives="the version of the application's row is compared too, and each change of the row changes it",
        ),
        ChosenMutant(
            "db/functions/publish_messages.sql",
            "n.organization = t.organization and (n.uid = t.uid or n.imported_id = t.uid) and n.deleted_at is null)\n"
            "                then 'outdated'",
            "n.organization = t.organization and (n.uid = t.uid or n.imported_id = t.uid) and n.deleted_at is null)\n"
            "                then null",
            _OUTBOX,
        ),
        ChosenMutant(
            "db/functions/publish_messages.sql",
            "(key = any (m_keys) or replay_key = any (m_replay_keys)) and expires_at < now()",
            "(key = any (m_keys) or replay_key = any (m_replay_keys))",
            _OUTBOX,
        ),
        ChosenMutant(
            "db/functions/routes_for.sql",
            "            or p_organization = 'default'\n                and application in",
            "            or application in",
            _OUTBOX,
        ),
        ChosenMutant(
            "db/functions/publish_messages.sql",
            "(a.id is null or a.deleted_at is not null) then 'missing'",
            "a.id is null then 'missing'",
            _PUBLISH,
            lives="a deletion changes the version of the application's row, so its routes are read again",
        ),
        ChosenMutant(
            "service/sending/group_publisher.py",
            "if principal is None or not principal.is_for_organization:",
            "if principal is None:",
            _PUBLISH,
            lives="each commit checks again that the token is for the whole organization",
        ),
        ChosenMutant(
            "service/sending/group_publisher.py", " + DELIVERY_WEIGHT * len(prepared.row.deliveries)", "", _PUBLISH
        ),
        ChosenMutant("db/group_commit.py", "if room < 0:", "if False:", _GROUP_COMMIT),
        ChosenMutant("db/group_commit.py", "len(group) < self._max_rows", "True", _GROUP_COMMIT),
        ChosenMutant("db/group_commit.py", "            if len(part) == 1:\n", "            if True:\n", _GROUP_COMMIT),
        ChosenMutant(
            "db/group_commit.py",
            "            failed += self._waiting\n            self._waiting.clear()\n",
            "            pass\n",
            _GROUP_COMMIT,
        ),
        ChosenMutant(
            "db/group_commit.py", "while self._waiting and not self._is_paused:", "while self._waiting:", _GROUP_COMMIT
        ),
        ChosenMutant("db/group_commit.py", ", context=self._context.copy()", "", _GROUP_COMMIT),
        ChosenMutant(
            "boathook_outage_publishing/publisher.py",
            "        if earlier.request_sha256 != key.request_sha256:\n"
            "            raise key_reused()\n        return earlier.id",
            "        return earlier.id",
            _BUFFERED,
        ),
        ChosenMutant(
            "boathook_outage_publishing/publisher.py",
            "if earlier is not None and earlier.request_sha256 != key.request_sha256:",
            "if False:",
            _BUFFERED,
        ),
        ChosenMutant(
            "boathook_outage_publishing/publisher.py",
            "        intake.on_loss.append(self._remembered.clear)\n",
            "",
            _BUFFERED,
        ),
        ChosenMutant(
            "boathook_outage_publishing/publisher.py",
            "            if application.home is not None:\n"
            "                raise ServedElsewhere(reference, application.home) from None\n",
            "",
            _BUFFERED,
        ),
        ChosenMutant(
            "boathook_outage_publishing/access_copy.py",
            "        if target.home is not None:\n            raise ServedElsewhere(reference, target.home)\n",
            "",
            _BUFFERED,
        ),
        ChosenMutant(
            "service/sending/message_store.py",
            "            if any(_is_known(receipts[position]) for position in positions):\n"
            "                await self._replicate(within_s)\n",
            "",
            _STANDBY,
        ),
        ChosenMutant(
            "service/sending/message_store.py",
            "first_of_each_key(batch, receipts), within_s",
            "range(len(batch)), within_s",
            _LATE,
        ),
        ChosenMutant("service/sending/message_store.py", "if UUID(first) == row.event.id:", "if False:", _LATE),
        ChosenMutant(
            "api/idempotency.py",
            "_hash(caller_scope.encode(), route.encode(), ",
            "_hash(caller_scope.encode(), ",
            _CALLS,
        ),
        ChosenMutant(
            "api/publish.py",
            "self._is_open = not app_context.settings.outbound.validate_payloads",
            "self._is_open = True",
            ("tests/postgres/api/test_api_messages.py", "-k", "schemas"),
        ),
    ),
    "mounts": (
        ChosenMutant(
            "service/access/signing_keys.py",
            'if header.get("alg") not in ALGORITHMS:',
            'if header.get("alg") is None:',
            _USER_TOKENS,
        ),
        ChosenMutant(
            "service/access/signing_keys.py", "await self._refresh(REFETCH_S)", "await self._refresh(0)", _USER_TOKENS
        ),
        ChosenMutant("service/access/signing_keys.py", " and not _is_weak(key)\n", "\n", _USER_TOKENS),
        ChosenMutant(
            "service/access/user_tokens.py",
            '_REQUIRED: Final = ("aud", "exp", ',
            '_REQUIRED: Final = ("aud", ',
            _USER_TOKENS,
        ),
        ChosenMutant(
            "service/access/authorization.py",
            " or self.mount is not None\n",
            "\n",
            ("tests/postgres/access/test_permissions.py",),
        ),
        ChosenMutant(
            "boathook_apps/mount_access.py", "principal.mount not in {None, self._path} or ", "", _MOUNT_ACCESS
        ),
        ChosenMutant(
            "boathook_apps/mount_access.py",
            "if not mount_role_may(caller.role, permission):",
            "if False:",
            _MOUNT_ACCESS,
        ),
        ChosenMutant("boathook_apps/mount_access.py", "if group in user.groups}", "}", _MOUNT_ACCESS),
        ChosenMutant(
            "boathook_apps/mounts.py", "check_target(scope, is_open=self._mount.is_open)", "pass", _MOUNT_ACCESS
        ),
        ChosenMutant(
            "boathook_apps/mounts.py",
            'if scope["type"] == "websocket" and not self._browsers.may_open_socket(scope):',
            "if False:",
            _MOUNT_ACCESS,
        ),
        ChosenMutant("boathook_apps/mounts.py", "if may_only_read else Permission.APP_CALL", "", _MOUNT_ACCESS),
        ChosenMutant("boathook_apps/browser_access.py", "in self._origins\n\n\n", "!= ''\n\n\n", _MOUNT_ACCESS),
    ),
    "mcp": (
        ChosenMutant(
            "boathook_mcp/session.py",
            "return application == self.application.shown_id",
            "return application is not None",
            _MCP,
        ),
        ChosenMutant(
            "boathook_mcp/session.py", "and application.id != self.application.id", "and not application", _MCP
        ),
        ChosenMutant(
            "boathook_mcp/session.py", "async with work.snapshot():", "async with connection.transaction():", _MCP
        ),
        ChosenMutant("boathook_mcp/previews.py", "\\0{actor}\\0", "\\0", _MCP),
        ChosenMutant("boathook_mcp/tool.py", "self.needs_writes and not session.allows_writes", "False", _MCP),
        ChosenMutant("boathook_mcp/http.py", "if not is_own:", "if False:", _MCP),
        ChosenMutant(
            "boathook_mcp/failures.py",
            'is_visible = reach.application is None or row.recipient.startswith("endpoint:")',
            "is_visible = True",
            _MCP,
        ),
        ChosenMutant(
            "service/operating/dead_letters.py",
            "Selection(ListFilter(until=died_before), keys)",
            "Selection(ListFilter(), keys)",
            _MCP,
        ),
    ),
}
