"""Measures boathook against its own ceiling and against the servers people write first, in one run.

Machines are noisy and shared, so every figure worth quoting is a ratio of two measurements that took turns.
``python -m benchmarks NAME`` runs one benchmark, from the root of a checkout with everything installed (`make dev`).
"""
