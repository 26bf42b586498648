"""Simulation of sending: sender processes, scripted endpoints and invariants."""
