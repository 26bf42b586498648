"""Alerts: evaluates rules over metrics and notifies channels.

rules       compiles rules and evaluates them against the metrics of all hosts
evaluator   changes the state of alerts on the elected keeper, and on one host while PostgreSQL is unavailable
dispatcher  sends due messages, one task per channel
notifier    implements the protocol of each kind of channel
service     starts these parts next to the keeper
"""
