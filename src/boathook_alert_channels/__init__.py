"""The built-in channels of alerts: Telegram, Slack, e-mail, and signed webhooks.

This module declares the channels and imports none of them; docs/how-to/alerts.md shows how to use them.

settings    the keys of [notifications.channels.NAME]
sending     over HTTP; mail: over SMTP
render      messages in the format of each
"""

from typing import Final

from boathook.config.channels import ChannelKind

telegram: Final = ChannelKind(
    table="boathook_alert_channels.settings:TelegramChannel", send="boathook_alert_channels.sending:send_to_telegram"
)
slack: Final = ChannelKind(
    table="boathook_alert_channels.settings:SlackChannel", send="boathook_alert_channels.sending:send_to_slack"
)
email: Final = ChannelKind(
    table="boathook_alert_channels.settings:EmailChannel", send="boathook_alert_channels.mail:send_mail"
)
webhook: Final = ChannelKind(
    table="boathook_alert_channels.settings:WebhookChannel", send="boathook_alert_channels.sending:send_to_webhook"
)
