"""RabbitMQ: holds events while PostgreSQL does not accept them, and notifies of due deliveries.

This module declares the package and imports none of it; docs/how-to/rabbitmq.md shows how to use it.

settings        [buffer] with the brokers; access: how they are reached
connection      one connection to a broker, with a deadline on every call; queues: their names and arguments
buffer          publishes a gateway's events; batch: the format of a message
gateway         what a gateway gets: gateway_buffer, brokers before the spool, and drain, from the queues to PostgreSQL
due_lane        notifies of due deliveries
commands        `boathook buffer`, listed by command_list, and the queues of `boathook migrate`: administration;
                doctor: their diagnosis
metrics         the metrics of all of these
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="rabbitmq",
    requires=("aio_pika",),
    tables="boathook_rabbitmq.settings:TABLES",
    metrics="boathook_rabbitmq.metrics:METRICS",
    check="boathook_rabbitmq.access:check",
    alert_rules="alert_rules.toml",
    prometheus_rules="alerts.yml",
    gateway="boathook_rabbitmq.gateway:open_gateway_part",
    notifier="boathook_rabbitmq.due_lane:open_lane",
    doctor="boathook_rabbitmq.doctor:examine",
    prepare="boathook_rabbitmq.administration:prepare_queues",
)
