"""tests/faults/README.md lists every scenario, and every scenario has a mutant with the invariants that it breaks."""

from tests.faults.rig import report
from tests.faults.rig.invariants import CHECKS


def test_every_scenario_has_a_mutant_that_breaks_an_invariant():
    scenarios = report.load_scenarios()
    assert scenarios
    for one in scenarios.values():
        assert one.mutant.patch or one.mutant.sql or one.mutant.server or one.mutant.settings, (
            f"{one.name} has no mutant"
        )
        assert one.mutant.breaks <= set(CHECKS), f"the mutant of {one.name} breaks what is no invariant"


def test_the_page_names_every_scenario_and_every_invariant():
    page = report.PAGE.read_text()
    missing = [name for name in report.load_scenarios() if f"`{name}`" not in page]
    assert not missing, f"run `python -m tests.faults.rig.report`: tests/faults/README.md lacks {missing}"
    for name, check in CHECKS.items():
        assert f"| {name} " in page, f"tests/faults/README.md does not explain {name}"
        assert (check.__doc__ or "").startswith(f"{name}: ")


def test_the_page_is_up_to_date():
    scenarios = report.load_scenarios()
    assert report.render(report.read(), scenarios) in report.PAGE.read_text(), "run `python -m tests.faults.rig.report`"


def test_no_result_on_the_page_is_a_failure():
    for one in report.read().results:
        assert one.is_good, f"{one.name}{' (mutant)' if one.mutant else ''}: {one.summary}, broken {one.broken}"
