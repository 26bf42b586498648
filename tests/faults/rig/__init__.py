"""The fault rig: runs boathook under faults, and checks what became of every event.

    history     what was observed from outside boathook: facts, one JSON line each
    recorder    a process of its own, never killed: the senders, the receivers, and the log of both
    proxy       a TCP proxy that delays, slices, stalls, resets and cuts, switched while it runs
    bank        the workload: an app whose handlers move one unit of money between two accounts
    postgres    a PostgreSQL of the scenario's own: kill, stop, freeze, restart, settings
    hosts       namespaces with a link each, for `boathook serve` on hosts of their own
    environment  runs `boathook serve` processes with all of these; the argument `env` of every scenario
    store_reader  reads the tables after the fault
    checker     judges the history against the store: invariants C1 to C15, pure functions
    scenario    the decorator that makes a function a scenario with its mutant, and collects the results
    report      writes the table of tests/faults/README.md from the results

A scenario is a function under `@scenario` in any `tests/faults/test_*.py`; see `tests.faults.rig.scenario`.
"""
