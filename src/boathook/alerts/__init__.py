"""Alerts: evaluates rules over metrics and notifies channels.

publisher   each host writes its metrics to PostgreSQL
window      the metrics of all hosts over time
rules       thresholds that metrics are compared with
evaluator   runs on the elected keeper and moves alerts between states
dispatcher  sends due messages, one task per channel
notifier    how each kind of channel is spoken to
local       evaluates on one host while PostgreSQL is unavailable
service     starts all of it beside a keeper
"""
