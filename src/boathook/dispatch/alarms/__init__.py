"""Alarms: what is looked at, what becomes of it, and who is told.

reporting   each host tells the journal what it counts
chart       what all hosts have told, as figures over time
rules       figures compared with thresholds
watch       the elected keeper looks, and moves alarms
telling     messages about them, sent beside everything else
alone       what a host tells by itself while PostgreSQL is away
service     all of it, started with a keeper
"""
