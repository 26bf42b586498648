"""`make test` keeps a test of every promise, and tests/README.md lists each test that it leaves out, and why."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.faults.rig.scenario import EXTENDED_REASON as SCENARIO_REASON
from tests.faults.rig.scenario import MUTANT_REASON
from tests.support import is_whole

ROOT = Path(__file__).parents[2]
README = ROOT / "tests" / "README.md"
SVIX = "acceptance/svix"

PROMISES: dict[int, list[str]] = {
    1: ["faults/test_crashes.py::test_gateway_and_worker_are_killed_under_load",
        "faults/test_crashes.py::test_postgresql_is_killed_and_restarted"],
    2: ["faults/test_crashes.py::test_a_frozen_worker_commits_nothing_after_its_lease",
        "postgres/delivery/test_worker.py::test_a_kill_at_any_point_leaves_each_effect_once",
        "postgres/db/test_deliveries.py::test_without_the_fence_check_a_stale_settle_would_win"],
    3: ["acceptance/test_exactly_once.py::test_failures_are_retried_buried_and_replayed",
        "acceptance/test_exactly_once.py::test_poison_payloads_die_and_other_events_succeed",
        "postgres/db/test_routing.py::TestUnhandled::test_a_source_event_without_recipients_is_unhandled",
        "postgres/db/test_routing.py::TestRoute::test_repeated_rerouting_adds_nothing"],
    4: ["postgres/db/test_integrity.py::test_a_healthy_store_in_all_states_balances",
        "postgres/db/test_integrity.py::test_every_breakage_is_found"],
    5: ["acceptance/test_exactly_once.py::test_a_forged_request_stores_nothing_and_the_real_one_is_accepted"],
    6: ["acceptance/test_exactly_once.py::test_another_body_under_a_known_key_is_a_conflict"],
    7: ["acceptance/test_exactly_once.py::test_bodies_are_stored_byte_for_byte"],
    8: ["acceptance/test_exactly_once.py::test_one_order_key_is_handled_in_accept_order",
        "postgres/db/test_deliveries.py::test_an_order_key_keeps_accept_order_under_concurrency_and_retries"],
    9: ["faults/test_crashes.py::test_a_rolling_stop_fails_no_request"],
    10: ["acceptance/test_exactly_once.py::test_logs_never_carry_bodies_or_secrets"],
    11: [f"{SVIX}/test_crashes.py::test_accepted_messages_arrive_after_a_full_kill_and_restart",
         "postgres/sending/test_buffered_publishing.py::test_messages_are_accepted_in_an_outage_and_stored_once_in_order",
         "postgres/sending/test_buffered_publishing.py::test_nothing_is_answered_before_it_is_durable"],
    12: ["faults/test_sending.py::test_senders_are_killed_under_load"],
    13: ["postgres/api/test_api_messages.py::test_an_idempotency_key_publishes_once_and_costs_no_row",
         "postgres/api/test_api_messages.py::test_an_event_id_is_unique_per_application",
         "postgres/sending/test_buffered_publishing.py::test_a_request_repeated_across_the_beginning_of_an_outage_has_one_answer"],
    14: ["postgres/delivery/test_sender.py::test_order_keys_keep_their_order_over_two_senders"],
    15: ["postgres/delivery/test_sender.py::test_out_of_attempts_is_dead",
         "postgres/delivery/test_sender.py::test_a_410_disables_the_endpoint_and_the_rest_waits"],
    16: ["postgres/delivery/test_sender.py::test_slow_endpoints_cost_the_others_nothing",
         "postgres/delivery/test_sender.py::test_without_shares_they_would"],
    17: ["unit/test_ssrf.py::test_the_table_denies",
         "unit/test_rebinding.py::test_no_packet_goes_to_a_denied_address"],
    18: [f"{SVIX}/test_canary.py::test_no_secret_is_found_anywhere"],
    19: [f"{SVIX}/test_tenants.py::test_foreign_tokens_neither_see_nor_change_anything"],
    20: ["postgres/delivery/test_wake.py::test_no_delivery_waits_in_any_order_of_events"],
    21: ["acceptance/test_body_schema.py::test_a_body_that_does_not_fit_is_refused_before_it_has_a_key"],
    22: ["acceptance/test_mounts.py::test_a_closed_mount_demands_an_organizations_token",
         "acceptance/test_mounts.py::test_a_page_of_another_site_opens_no_websocket"],
    23: ["postgres/delivery/test_chores.py::test_of_two_keepers_one_does_the_chores"],
    24: ["postgres/db/test_app_schema.py::test_files_are_applied_in_order_and_once",
         "postgres/db/test_app_schema.py::test_a_file_that_was_changed_after_it_had_been_applied_is_refused"],
    25: ["unit/test_download.py::test_an_interrupted_download_is_resumed",
         "unit/test_download.py::test_a_changed_file_is_downloaded_from_the_start"],
    26: ["apps/billing/test_payment_store.py::test_twenty_concurrent_copies_of_a_payment_apply_once",
         "apps/fleet/test_rules.py::test_the_simulation_of_the_command_line_ends_in_the_right_tables",
         "apps/music/test_rules.py::test_made_up_traffic_ends_in_the_right_books",
         "apps/cashdesk/test_api.py::test_simulated_shops_get_all_their_webhooks"],
    27: ["faults/test_database.py::test_stopped",
         "unit/test_spool.py::TestSegmentStores::test_events_are_drained_in_order_over_many_segments"],
    28: ["faults/test_hangs.py::test_a_hang_and_its_end_are_detected"],
    29: ["faults/test_disks.py::test_spool_disk_full",
         "unit/test_spool.py::TestSegments::test_a_corrupt_record_counts_as_lost_and_later_ones_are_read"],
    30: ["simulation/test_simulation.py::test_no_seed_breaks_an_invariant",
         "simulation/test_sending.py::test_no_seed_of_sending_breaks_an_invariant"],
}  # fmt: skip
"""Tests of `make test` for each promise of docs/explanation/promises.md: one that can only be reached by `make test-all` is not enough."""

FAULT_FAMILIES = {
    "test_database": "test_stopped",
    "test_disks": "test_spool_disk_full",
    "test_floods": "test_one_id_two_bodies",
    "test_network": "test_outcome_unknown",
    "test_power": "test_power_cut_of_postgresql",
    "test_processes": "test_gateway_killed",
    "test_workers": "test_bug_storm",
}
"""The fault scenario of each family that `make test` runs; its mutant runs in `make test-all`."""


def collected(*arguments: str) -> str:
    """Return what pytest lists of these tests without running them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def default_tier(request: pytest.FixtureRequest) -> set[str]:
    """The tests named above that `make test` runs, with their parameters."""
    if is_whole(request.config):
        return {item.nodeid.removeprefix("tests/") for item in request.session.items}
    names = [test for tests in PROMISES.values() for test in tests]
    names += [f"faults/{family}.py::{test}" for family, test in FAULT_FAMILIES.items()]
    listed = collected(*sorted({f"tests/{name}" for name in names}))
    return set(re.findall(r"^tests/(\S+)", listed, re.MULTILINE))


def test_each_promise_is_kept_by_a_test_of_make_test(default_tier: set[str]):
    numbers = re.findall(r"^(\d+)\. \*\*", (ROOT / "docs/explanation/promises.md").read_text(), re.MULTILINE)
    assert sorted(PROMISES) == [int(number) for number in numbers]
    plain = {test.partition("[")[0] for test in default_tier}
    gone = {number: missing for number, tests in PROMISES.items() if (missing := set(tests) - plain)}
    assert gone == {}, "promises without their test in make test"


def test_each_fault_family_has_a_scenario_in_make_test(default_tier: set[str]):
    for family, test in FAULT_FAMILIES.items():
        assert f"faults/{family}.py::{test}[sound]" in default_tier, family


def test_tests_left_out_of_make_test_are_listed_with_a_reason():
    expected = left_out()
    begin, end = "<!-- extended -->\n", "<!-- end -->\n"
    text = README.read_text()
    shown = text[text.index(begin) + len(begin) : text.index(end)]
    if shown != expected:
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / "extended.md").write_text(expected)
    assert shown == expected, "put build/extended.md between the marks of tests/README.md"


def left_out() -> str:
    """Return the list as Markdown: for each reason the files, with the number of marks in each."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path == Path(__file__):
            continue
        text = path.read_text()
        reasons = Counter(re.findall(r'mark\.extended\(\s*"([^"]+)"\s*\)', text))
        reasons[SCENARIO_REASON] += text.count('tier="extended"')
        reasons[MUTANT_REASON] += text.count("@scenario(") - text.count('tier="')
        for reason, number in (+reasons).items():
            times = f" ({number})" if number > 1 else ""
            found[reason].append(f"  - `{path.relative_to(ROOT / 'tests')}`{times}\n")
    return "".join(f"- {reason}:\n{''.join(files)}" for reason, files in sorted(found.items()))


def test_no_file_needs_an_installed_program_to_be_collected():
    """`make test` collects the tests while it installs the programs that they use."""
    asserting = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^assert\b", text := path.read_text(), re.MULTILINE)  # parsing all files would take seconds
        and any(isinstance(node, ast.Assert) for node in ast.parse(text).body)
    ]

    assert asserting == []
