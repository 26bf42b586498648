"""The fault rig: everything a scenario needs to break boathook, and to judge what became of every event.

    history     what is known from outside: facts, one JSON line each
    recorder    a process of its own, never killed: senders that keep a diary of it all, and the receivers of messages
    proxy       a TCP proxy that delays, slices, stalls, resets and cuts, switched while it runs
    bank        the workload: an app whose handlers move one unit of money between two accounts
    postgres    a PostgreSQL of the scenario's own: kill, stop, freeze, restart, settings
    lab         puts these around real `boathook serve` processes; the object `lab` of every scenario
    ledger      reads what the store says after the fault
    checker     judges the history against the store: invariants C1 to C15, pure functions
    scenario    the decorator that makes a function a scenario with its sabotage twin, and collects the results
    report      writes the table of docs/reliability.md from the results

A scenario is a function under `@scenario` in any `tests/faults/test_*.py`; see `tests.faults.rig.scenario`.
"""
