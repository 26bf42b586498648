"""Alerts: evaluates rules over metrics and notifies channels.

window      holds the metrics of all hosts over time
rules       defines thresholds for metrics
evaluator   evaluates rules on the elected keeper and changes the state of alerts
dispatcher  sends due messages, one task per channel
notifier    implements the protocol of each kind of channel
local       evaluates rules on one host while PostgreSQL is unavailable
service     starts these parts next to the keeper
"""
