"""Set-up guides: the steps at each provider, the URL to enter, and the location of its secret.

``{url}`` stands for the source's URL at boathook. Facts of the recipe, such as the sender's timeout and retries, are
not repeated here.
"""

from collections.abc import Mapping
from typing import Final

_SVIX: Final = "Copy the endpoint's signing secret, which begins with whsec_, into the source's secrets."
_GENERIC_NAMES: Final = (
    "If events have an id, set id_header or id_path to its location, so that a repeated request is recognized. "
    "Without an id, requests with equal bodies count as the same event."
)

SETUP_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    # Payments
    "stripe": (
        "In Stripe's Dashboard open Workbench, then Webhooks, and add a webhook endpoint as destination.",
        "Enter {url} as the endpoint's URL and choose the events that your handlers process.",
        (
            "Reveal the endpoint's signing secret and copy all of it, whsec_ included, into the source's "
            "secrets. Each endpoint has its own secret, in test mode and in live mode."
        ),
        (
            "To rotate, roll the secret in Workbench with a delay of up to 24 hours, during which Stripe signs "
            "with both secrets."
        ),
    ),
    "paypal": (
        "In PayPal's Developer Dashboard open the app (Sandbox or Live), and add a webhook.",
        "Enter {url} and choose the event types.",
        (
            "Set webhook_id of the source to the webhook's ID, which is part of the signed bytes. There is no "
            "secret; boathook fetches PayPal's certificate automatically."
        ),
        (
            "The signature covers only a CRC-32 of the body: if money is involved, fetch the resource from "
            "PayPal's API. Requests of PayPal's webhook simulator have no valid signature and are rejected."
        ),
    ),
    "square": (
        "In Square's Developer Console open the application, then Webhooks, Subscriptions, and add a subscription.",
        ("Enter {url} exactly as shown here, and set public_url to its base URL: Square signs the URL."),
        "Choose the events, then copy the signature key into the source's secrets.",
    ),
    "adyen": (
        "In Adyen's Customer Area open Developers, then Webhooks, and add a Standard webhook.",
        "Enter {url}, the method JSON, and choose the events.",
        (
            "Under Security generate an HMAC key, which is hexadecimal, and copy it into the source's secrets. "
            "Webhooks of Platforms, Management and Banking use another scheme: for them set scheme = "
            '"platforms".'
        ),
        "Adyen retries only the oldest failed item and delays later ones, so one rejected item blocks all others.",
    ),
    "braintree": (
        "In Braintree's Control Panel open API, then Webhooks, and create a webhook.",
        (
            "Before you save it, set public_key of the source to the public key of your API keys, copy the "
            "private key into the source's secrets, and start boathook: Braintree verifies the URL when it is "
            "saved."
        ),
        "Enter {url} as the destination and choose the notifications.",
    ),
    "gocardless": (
        "In the GoCardless dashboard open Developers, Create, and add a webhook endpoint.",
        (
            "Enter {url} and a secret, or let GoCardless generate one, and put the same secret into the source's "
            "secrets."
        ),
        "One request contains many events; each is handled separately.",
    ),
    "mollie": (
        (
            "For signed webhooks create one in Mollie's dashboard under Developers, Webhooks, and set scheme = "
            '"next-gen".'
        ),
        "Enter {url}, choose the events, and copy the signing secret into the source's secrets.",
        (
            "Classic webhooks have no signature: pass {url} as webhookUrl of each payment, set unsigned = "
            "true, and let the handler fetch the payment from Mollie's API. The request contains only the "
            "payment's id."
        ),
    ),
    "razorpay": (
        "In Razorpay's Dashboard open Account & Settings, then Webhooks, and add a webhook.",
        "Enter {url} and a long random secret, and put the same secret into the source's secrets.",
        "Choose the active events. After a day of failures Razorpay disables the webhook and sends an e-mail.",
    ),
    "coinbase-commerce": (
        "In Coinbase Commerce open Settings, then Notifications, and add an endpoint.",
        "Enter {url} and choose the events.",
        "Show the shared secret and copy it into the source's secrets.",
    ),
    "paddle": (
        "In Paddle open Developer tools, then Notifications, and add a webhook destination.",
        "Enter {url} and choose the events.",
        "Copy the secret key of the destination, which begins with pdl_ntfset_, into the source's secrets.",
    ),
    "yookassa": (
        "In YooKassa's account open Integration, then HTTP notifications.",
        "Enter {url} and choose the events, such as payment.succeeded and refund.succeeded.",
        (
            "There is no signature: boathook accepts requests from YooKassa's networks only, so behind a proxy "
            "set server.trusted_proxies. Let the handler fetch the payment from YooKassa's API before it acts "
            "on it."
        ),
    ),
    "cloudpayments": (
        "In CloudPayments' account open the site's settings, and enable the notifications you need.",
        ("For each, enter {url} with ?kind= and the notification's name, such as {url}?kind=pay, and the method POST."),
        "Copy the site's API Secret into the source's secrets.",
        (
            'The reply to a Check notification decides whether the payment may proceed: use mode = "inline" '
            "for it, and reply with a code of CloudPayments."
        ),
    ),
    "t-bank": (
        "In T-Bank's merchant account open the shop, then Terminals, and edit the terminal.",
        "Enter {url} as the URL of HTTP notifications, or pass it as NotificationURL of each payment.",
        "Put the terminal's password into the source's secrets. Test and live terminals have different passwords.",
    ),
    "robokassa": (
        "In Robokassa's account open the shop's technical settings.",
        'Enter {url} as Result URL, with the method POST; for GET set scheme = "get".',
        (
            "Put Password #2 into the source's secrets; test mode has its own. If the shop uses a hash other "
            "than MD5, set algorithm."
        ),
    ),
    "tilda": (
        "In Tilda open the site's settings, then Forms, and add a Webhook.",
        (
            "Enter {url}. In its settings enable an API key, choose how it is sent, and set header or field of "
            "the source accordingly."
        ),
        (
            "Choose a long random key, and put the same key into the source's secrets. Then connect the "
            "webhook to the forms and publish the site."
        ),
    ),
    # Commerce, mail, telephony
    "shopify": (
        (
            "For an app, subscribe in its shopify.app.toml or through the Admin API; for one shop, open Settings, "
            "Notifications, Webhooks."
        ),
        "Enter {url}, the format JSON, and the topic. A subscription covers one topic.",
        (
            "Put the app's client secret into the source's secrets; for a shop's own webhooks it is the key "
            "below the list of webhooks."
        ),
        "After a rotation Shopify may sign with the old secret for up to an hour.",
    ),
    "woocommerce": (
        "In WordPress open WooCommerce, Settings, Advanced, Webhooks, and add one.",
        "Enter {url} as delivery URL, choose the topic, and set the status to Active.",
        "Choose a long random secret, and put the same secret into the source's secrets.",
        "WooCommerce never retries, and disables the webhook after five failures in a row.",
    ),
    "twilio": (
        "In Twilio's Console open the phone number or messaging service.",
        (
            "Enter {url} as its webhook, with the method POST, exactly as shown here, and set public_url to "
            "its base URL: Twilio signs the URL."
        ),
        "Put the account's Auth Token into the source's secrets. To rotate it, promote the secondary token.",
        'To reply with TwiML, use mode = "inline": the handler sets the reply.',
    ),
    "sendgrid": (
        "In SendGrid open Settings, Mail Settings, Event Webhook, and create one.",
        "Enter {url} as Post URL and choose the actions.",
        (
            "Enable Signed Event Webhook, and copy the verification key, which is a public key, into the "
            "source's secrets."
        ),
    ),
    "mailgun": (
        "In Mailgun open Sending, then Webhooks, choose the domain, and add a webhook.",
        "Enter {url} for each event type.",
        "Copy the HTTP webhook signing key, under API Security, into the source's secrets.",
        "Mailgun signs a timestamp and a token, not the body: do not trust the body.",
    ),
    "postmark": (
        "In Postmark open the server, the message stream, then Webhooks, and add one.",
        "Enter {url}, and under Basic auth a user name and a long random password.",
        "Set username of the source to the user name, and put the password into password or the secrets.",
    ),
    # Code and operations
    "github": (
        "In the repository, organization or app open Settings, then Webhooks, and add a webhook.",
        "Enter {url} as payload URL, the content type application/json, and choose the events.",
        "Choose a long random secret, and put the same secret into the source's secrets.",
        "GitHub does not retry automatically: resend failed deliveries with Redeliver under Recent Deliveries.",
    ),
    "gitlab": (
        "In the project or group open Settings, then Webhooks, and add one.",
        "Enter {url} and choose the triggers.",
        (
            "Create a signing token, which begins with whsec_, and put it into the source's secrets. If GitLab "
            'offers only the secret token, choose a long random one and set scheme = "token".'
        ),
    ),
    "bitbucket": (
        "In the repository open Repository settings, then Webhooks, and add one.",
        "Enter {url} and choose the triggers.",
        "Choose a long random secret, and put the same secret into the source's secrets.",
        "Bitbucket silently drops bodies above 256 KB.",
    ),
    "jira": (
        "In Jira open Settings, System, WebHooks, and create one.",
        "Enter {url}, choose the events, and optionally narrow them with JQL.",
        (
            "Choose a long random secret, and put the same secret into the source's secrets. Connect apps use "
            'another scheme: set scheme = "connect" and put their shared secret into the source\'s secrets.'
        ),
    ),
    "linear": (
        "In Linear open Settings, API, and create a webhook.",
        "Enter {url} and choose the data change events.",
        "Copy the signing secret into the source's secrets.",
    ),
    "vercel": (
        "In Vercel open the team's Settings, then Webhooks, and create one.",
        "Enter {url}, and choose events and projects.",
        (
            "Copy the secret, which is shown once, into the source's secrets. Webhooks of an integration are "
            "signed with the integration's client secret instead."
        ),
    ),
    "netlify": (
        "In Netlify open the project's configuration, Notifications, and add an HTTP POST request.",
        "Choose the event and enter {url}.",
        "Choose a long random JWS secret token, and put the same token into the source's secrets.",
    ),
    "circleci": (
        "In CircleCI open the project's settings, then Webhooks, and add one.",
        "Enter {url} and choose workflow or job completed.",
        "Choose a long random secret token, and put the same token into the source's secrets.",
    ),
    "sentry": (
        "In Sentry open Settings, Developer Settings, and create an internal integration.",
        "Enter {url} as webhook URL and enable the resources.",
        "Copy the integration's client secret into the source's secrets.",
        "Sentry waits one second and never retries.",
    ),
    "pagerduty": (
        "In PagerDuty open Integrations, then Generic Webhooks (v3), and add one.",
        "Enter {url} and choose scope and events.",
        "Copy the signing secret, which is shown once, into the source's secrets.",
    ),
    "okta": (
        "In Okta's Admin Console open Workflow, then Event Hooks, and create one.",
        (
            "Enter {url}, choose the events, and set an authentication field, such as Authorization, and a long "
            "random authentication secret."
        ),
        "Put the same secret into the source's secrets. If the field is not Authorization, set header to its name.",
        "Start boathook, then press Verify: Okta sends one verification request before it sends events.",
    ),
    "auth0": (
        "In Auth0's Dashboard open Monitoring, then Streams, and create a Custom Webhook.",
        "Enter {url}, the content type application/json and the format JSON Lines or Array.",
        "Choose a long random authorization token, and put the same token into the source's secrets.",
    ),
    "openai": (
        "In OpenAI's platform open the project's settings, then Webhooks, and create one.",
        "Enter {url} and choose the event types.",
        "Copy the signing secret, which is shown once and begins with whsec_, into the source's secrets.",
    ),
    "sns": (
        "Set topic_arn of the source to the topic's ARN, and start boathook.",
        "In the SNS console open the topic and create a subscription with the protocol HTTPS and the endpoint {url}.",
        (
            "Keep raw message delivery disabled: raw messages are not signed. There is no secret; boathook "
            "fetches Amazon's certificate and confirms the subscription automatically."
        ),
    ),
    "pubsub": (
        "In Google Cloud create a push subscription of the topic with the endpoint {url}.",
        "Enable authentication, choose a service account, and set an audience.",
        (
            "In the source, set email to the service account's address and audience to that audience. There is "
            "no secret; boathook fetches Google's keys automatically."
        ),
    ),
    "microsoft-graph": (
        (
            "Put a long random text into the source's secrets and start boathook: Microsoft Graph sends a "
            "verification request when the subscription is created."
        ),
        "POST to /subscriptions with notificationUrl {url}, and the same text as clientState.",
        "A subscription expires within days: renew it regularly by a program.",
    ),
    # Chat and people
    "slack": (
        (
            "At api.slack.com/apps open the app, then Basic Information, and copy the signing secret into the "
            "source's secrets. Start boathook."
        ),
        "Under Event Subscriptions enable events and enter {url} as Request URL; Slack verifies it immediately.",
        "Subscribe to the events, then install the app again.",
    ),
    "discord": (
        (
            "In Discord's Developer Portal open the application, and copy its public key into the source's "
            "secrets. Start boathook."
        ),
        ("Under Webhooks enter {url} as endpoint URL and enable the events; or enter it as Interactions Endpoint URL."),
        "Discord regularly sends test requests with invalid signatures, so some rejections are expected.",
    ),
    "telegram": (
        "Choose a long random text of letters, digits, _ and -, and put it into the source's secrets.",
        (
            "Call setWebhook of the Bot API with url={url}, secret_token set to that text, and allowed_updates as "
            "you need."
        ),
        "To rotate, add the new text to the source's secrets, call setWebhook with it, then end the old secret.",
    ),
    "vk": (
        "In the community open Manage, API usage, Callback API, and add a server.",
        (
            "Set confirmation of the source to the string that the server must return, choose a long random "
            "secret key, put it into the source's secrets, and start boathook."
        ),
        "Enter {url}, the same secret key, confirm, and choose the event types.",
    ),
    "meta": (
        (
            "At developers.facebook.com open the app, and put its App Secret, from Settings, Basic, into the "
            "source's secrets."
        ),
        "Choose a random verify_token for the source, and start boathook.",
        (
            "Under Webhooks (or WhatsApp, Configuration) enter {url} as callback URL and the same verify token, "
            "then subscribe to the fields."
        ),
    ),
    "x": (
        "Put the app's consumer secret (API key secret) into the source's secrets, and start boathook.",
        (
            "Register {url} with POST /2/webhooks, then subscribe the accounts. X sends a verification request "
            "repeatedly, and stops sending events after a wrong reply."
        ),
    ),
    "zoom": (
        (
            "In the Zoom App Marketplace open the app, Features, and copy the secret token into the source's "
            "secrets. Start boathook."
        ),
        "Enable Event Subscriptions, enter {url} as endpoint URL, press Validate, and choose the events.",
    ),
    "dropbox": (
        "In the Dropbox App Console open the app, put its App secret into the source's secrets, and start boathook.",
        "Under Webhooks enter {url}; Dropbox sends one verification request.",
        (
            "A notification only names the accounts whose files have changed: let the handler fetch the changes "
            "from Dropbox's API."
        ),
    ),
    "notion": (
        (
            "At notion.so/my-integrations open the integration, then Webhooks, and create a subscription for "
            "{url}. The source needs no secrets: Notion sends one."
        ),
        "Then run `boathook sources secret` with the source's name, and paste its output into Notion.",
    ),
    "intercom": (
        (
            "In Intercom's Developer Hub open the app, and put its client secret into the source's secrets. Start "
            "boathook."
        ),
        "Under Webhooks enter {url} as endpoint URL and choose the topics.",
    ),
    "zendesk": (
        "In Zendesk's Admin Center open Apps and integrations, Webhooks, and create one.",
        "Enter {url}, the method POST and the format JSON, and choose the events, or connect it to a trigger.",
        "Reveal the signing secret and copy it into the source's secrets.",
    ),
    "hubspot": (
        "In HubSpot's developer account open the app, then Webhooks.",
        (
            "Enter {url} as target URL exactly as shown here, set public_url to its base URL, and create the "
            "subscriptions: HubSpot signs the URL."
        ),
        "Put the app's client secret into the source's secrets.",
    ),
    "docusign": (
        "In Docusign's Admin open Integrations, Connect, and add a custom configuration.",
        "Enter {url}, the format JSON, and choose the events.",
        (
            "Under Connect Keys add a key, copy it into the source's secrets (it is shown once), and enable "
            "Include HMAC Signature."
        ),
    ),
    "typeform": (
        "In Typeform open the form, Connect, Webhooks, and add one.",
        (
            "Enter {url}, choose a long random secret, put the same secret into the source's secrets, and "
            "enable the webhook."
        ),
    ),
    "calendly": (
        "Create a webhook subscription through Calendly's API, POST /webhook_subscriptions, with the url {url}.",
        "Pass a long random signing_key, and put the same key into the source's secrets.",
    ),
    "xero": (
        (
            "At developer.xero.com open the app, then Webhooks; copy the webhooks key into the source's secrets "
            "and start boathook."
        ),
        (
            "Enter {url} as delivery URL and send the intent to receive: Xero sends requests with valid and "
            "invalid signatures, and expects the invalid ones to be rejected."
        ),
    ),
    # Resellers
    "suno": (
        "Pass {url} as callBackUrl of each request to kie.ai or sunoapi.org.",
        "In the reseller's settings create a webhook HMAC key and put it into the source's secrets.",
        "The signature covers the task's id and the timestamp, not the body: fetch the result from its API.",
    ),
    "suno-musicapi": (
        "In musicapi.ai's settings enter {url} as webhook URL, or pass it with each request.",
        "Copy the webhook secret into the source's secrets.",
    ),
    "suno-sunoapi": (
        "Pass {url} as callback URL of each request to sunoapi.com.",
        "Copy the webhook secret from your account into the source's secrets.",
    ),
    "rentprog": (
        "In RentProg's integration settings enter {url} as webhook URL.",
        (
            "Choose a long random token. Have RentProg send it in a header and set header of the source to its "
            "name, or append it to the URL as a parameter and set query to the parameter's name."
        ),
        "Put the same token into the source's secrets.",
    ),
    "umnico": (
        "In Umnico open Settings, API, and enter {url} as webhook URL.",
        "Choose a long random token, append it to the URL as a parameter, and set query to the parameter's name.",
        "Put the same token into the source's secrets.",
    ),
    # Whole families
    "standard-webhooks": (
        "At the sender, add an endpoint with the URL {url} and choose the event types.",
        (
            "Copy the endpoint's signing secret, which begins with whsec_, into the source's secrets. For "
            'Ed25519 set scheme = "v1a" and copy the public key, which begins with whpk_.'
        ),
    ),
    "resend": (
        "In Resend open Webhooks, add one, enter {url} and choose the events.",
        _SVIX,
    ),
    "clerk": (
        "In Clerk's Dashboard open Configure, Webhooks, add an endpoint, enter {url} and choose the events.",
        _SVIX,
    ),
    "hmac": (
        "At the sender, enter {url} as the webhook's URL.",
        (
            "Look up in its documentation which header contains the signature and which bytes are signed. Set "
            "header, algorithm, encoding and template of the source accordingly, and prefix if the signature "
            "has one."
        ),
        "Put the shared secret into the source's secrets.",
        _GENERIC_NAMES,
    ),
    "token": (
        "At the sender, enter {url} as the webhook's URL.",
        (
            "Choose a long random token. Have the sender put it in a header, the Basic password or the URL, "
            "and set header, username or query of the source accordingly."
        ),
        "Put the same token into the source's secrets. It authenticates the sender, but does not protect the body.",
        _GENERIC_NAMES,
    ),
    "unsigned": (
        "At the sender, enter {url} as the webhook's URL.",
        (
            "Anyone who has the URL can send anything: set unsigned = true, set addresses to the sender's "
            "networks if it publishes them, and let the handler fetch the data from the sender's API."
        ),
        _GENERIC_NAMES,
    ),
}
"""By provider."""

USER_CHOSEN_SECRETS: Final = frozenset({
    "gocardless", "razorpay", "tilda", "woocommerce", "postmark", "github", "bitbucket", "jira", "netlify", "circleci",
    "okta", "auth0", "microsoft-graph", "telegram", "vk", "typeform", "calendly", "rentprog", "umnico", "hmac", "token",
})  # fmt: skip
"""Providers whose secret the user chooses, so that boathook can generate it."""
