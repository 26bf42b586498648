"""The event types of senders that publish a list of them; handlers' types are compared with it.

Senders add types at any time, so a list may be incomplete.
"""

from collections.abc import Mapping
from typing import Final


def _read(text: str) -> Mapping[str, tuple[str, ...]]:
    """Return the rests of types by their first parts, from lines such as ``issues: closed opened``."""
    types: dict[str, tuple[str, ...]] = {}
    first = ""
    for word in text.split():
        if word.endswith(":"):
            first = word.removesuffix(":")
            types[first] = ()
        else:
            types[first] += (word,)
    return types


STRIPE_TYPES: Final = _read("""
    account: application.authorized application.deauthorized external_account.created external_account.deleted
    external_account.updated updated
    application_fee: created refund.updated refunded
    apps: install.created install.deleted install.updated
    balance: available
    balance_settings: updated
    billing: alert.triggered credit_balance_transaction.created credit_grant.created credit_grant.updated
    meter.created meter.deactivated meter.reactivated meter.updated
    billing_portal: configuration.created configuration.updated session.created
    capability: updated
    cash_balance: funds_available
    charge: captured dispute.closed dispute.created dispute.funds_reinstated dispute.funds_withdrawn
    dispute.updated expired failed pending refund.updated refunded succeeded updated
    checkout: session.async_payment_failed session.async_payment_succeeded session.completed session.expired
    climate: order.canceled order.created order.delayed order.delivered order.product_substituted
    product.created product.pricing_updated
    coupon: created deleted updated
    credit_note: created updated voided
    customer: created deleted discount.created discount.deleted discount.updated source.created source.deleted
    source.expiring source.updated subscription.created subscription.deleted subscription.paused
    subscription.pending_update_applied subscription.pending_update_expired subscription.resumed
    subscription.trial_will_end subscription.updated tax_id.created tax_id.deleted tax_id.updated updated
    customer_cash_balance_transaction: created
    entitlements: active_entitlement_summary.updated
    file: created
    financial_connections: account.account_numbers_updated account.created account.deactivated
    account.disconnected account.expected_deactivation_date_updated account.reactivated
    account.refreshed_balance account.refreshed_ownership account.refreshed_transactions
    account.supported_payment_method_types_updated account.upcoming_account_number_expiry
    account.upcoming_deactivation authorization.expected_deactivation_date_updated
    authorization.upcoming_deactivation
    identity: verification_session.canceled verification_session.created verification_session.processing
    verification_session.redacted verification_session.requires_input verification_session.verified
    invoice: created deleted finalization_failed finalized marked_uncollectible overdue overpaid paid
    payment_action_required payment_attempt_required payment_failed payment_succeeded sent upcoming updated
    voided will_be_due
    invoice_payment: paid
    invoiceitem: created deleted
    issuing_authorization: created request updated
    issuing_card: created updated
    issuing_cardholder: created updated
    issuing_dispute: closed created funds_reinstated funds_rescinded submitted updated
    issuing_personalization_design: activated deactivated rejected updated
    issuing_token: created updated
    issuing_transaction: created purchase_details_receipt_updated updated
    mandate: updated
    payment_intent: amount_capturable_updated canceled created partially_funded payment_failed processing
    requires_action succeeded
    payment_link: created updated
    payment_method: attached automatically_updated detached updated
    payout: canceled created failed paid reconciliation_completed updated
    person: created deleted updated
    plan: created deleted updated
    price: created deleted updated
    product: created deleted updated
    promotion_code: created updated
    quote: accepted canceled created finalized
    radar: early_fraud_warning.created early_fraud_warning.updated
    refund: created failed updated
    reporting: report_run.failed report_run.succeeded report_type.updated
    reserve: hold.created hold.updated plan.created plan.disabled plan.expired plan.updated release.created
    review: closed opened
    setup_intent: canceled created requires_action setup_failed succeeded
    sigma: scheduled_query_run.created
    source: canceled chargeable failed mandate_notification refund_attributes_required transaction.created
    transaction.updated
    subscription_schedule: aborted canceled completed created expiring released updated
    tax: settings.updated
    tax_rate: created updated
    terminal: reader.action_failed reader.action_succeeded reader.action_updated
    test_helpers: test_clock.advancing test_clock.created test_clock.deleted test_clock.internal_failure
    test_clock.ready
    three_d_secure: authentication.canceled authentication.challenge_started authentication.errored
    authentication.failed authentication.requires_challenge authentication.requires_submission
    authentication.succeeded
    topup: canceled created failed reversed succeeded
    transfer: created reversed updated
    treasury: credit_reversal.created credit_reversal.posted debit_reversal.completed debit_reversal.created
    debit_reversal.initial_credit_granted financial_account.closed financial_account.created
    financial_account.features_status_updated inbound_transfer.canceled inbound_transfer.created
    inbound_transfer.failed inbound_transfer.succeeded outbound_payment.canceled outbound_payment.created
    outbound_payment.expected_arrival_date_updated outbound_payment.failed outbound_payment.posted
    outbound_payment.returned outbound_payment.tracking_details_updated outbound_transfer.canceled
    outbound_transfer.created outbound_transfer.expected_arrival_date_updated outbound_transfer.failed
    outbound_transfer.posted outbound_transfer.returned outbound_transfer.tracking_details_updated
    received_credit.created received_credit.failed received_credit.succeeded received_debit.created
""")
"""``enabled_events`` of webhook endpoints in stripe (Python) 16.1.0: https://docs.stripe.com/api/events/types"""

GITHUB_TYPES: Final = _read("""
    branch_protection_configuration: disabled enabled
    branch_protection_rule: created deleted edited
    check_run: completed created requested_action rerequested
    check_suite: completed requested rerequested
    code_scanning_alert: appeared_in_branch closed_by_user created fixed reopened reopened_by_user
    commit_comment: created
    create:
    custom_property: created deleted
    custom_property_values: updated
    delete:
    dependabot_alert: created dismissed fixed reintroduced reopened
    deploy_key: created deleted
    deployment: created
    deployment_protection_rule: requested
    deployment_review: approved rejected requested
    deployment_status: created
    discussion: answered category_changed created deleted edited labeled locked pinned transferred unanswered
    unlabeled unlocked unpinned
    discussion_comment: created deleted edited
    fork:
    github_app_authorization: revoked
    gollum:
    installation: created deleted new_permissions_accepted suspend unsuspend
    installation_repositories: added removed
    installation_target: renamed
    issue_comment: created deleted edited
    issues: assigned closed deleted demilestoned edited labeled locked milestoned opened pinned reopened
    transferred unassigned unlabeled unlocked unpinned
    label: created deleted edited
    marketplace_purchase: cancelled changed pending_change pending_change_cancelled purchased
    member: added edited removed
    membership: added removed
    merge_group: checks_requested destroyed
    meta: deleted
    milestone: closed created deleted edited opened
    org_block: blocked unblocked
    organization: deleted member_added member_invited member_removed renamed
    package: published updated
    page_build:
    ping:
    project: closed created deleted edited reopened
    project_card: converted created deleted edited moved
    project_column: created deleted edited moved
    projects_v2_item: archived converted created deleted edited reordered restored
    public:
    pull_request: assigned auto_merge_disabled auto_merge_enabled closed converted_to_draft demilestoned
    dequeued edited enqueued labeled locked milestoned opened ready_for_review reopened review_request_removed
    review_requested synchronize unassigned unlabeled unlocked
    pull_request_review: dismissed edited submitted
    pull_request_review_comment: created deleted edited
    pull_request_review_thread: resolved unresolved
    push:
    registry_package: published updated
    release: created deleted edited prereleased published released unpublished
    repository: archived created deleted edited privatized publicized renamed transferred unarchived
    repository_dispatch:
    repository_import:
    repository_vulnerability_alert: create dismiss reopen resolve
    secret_scanning_alert: created reopened resolved revoked
    secret_scanning_alert_location: created
    security_advisory: performed published updated withdrawn
    sponsorship: cancelled created edited pending_cancellation pending_tier_change tier_changed
    star: created deleted
    status:
    team: added_to_repository created deleted edited removed_from_repository
    team_add:
    watch: started
    workflow_dispatch:
    workflow_job: completed in_progress queued waiting
    workflow_run: completed in_progress requested
""")
"""The events with their actions, from https://github.com/octokit/webhooks/tree/main/payload-schemas; those without one
stand alone. The actions of ``repository_dispatch`` are the user's own."""

PADDLE_TYPES: Final = _read("""
    address: created imported updated
    adjustment: created updated
    api_key: created expired expiring revoked updated
    api_key_exposure: created
    business: created imported updated
    client_token: created revoked updated
    customer: created imported updated
    discount: created imported updated
    discount_group: created updated
    invoice: canceled created issued overdue paid scheduled
    payment_method: deleted saved
    payout: created paid
    price: created imported updated
    product: created imported updated
    report: created updated
    subscription: activated canceled created imported past_due paused resumed trialing updated
    transaction: billed canceled completed created paid past_due payment_failed ready revised updated
""")
"""``EventTypeName`` in paddle-python-sdk 1.16.1: https://developer.paddle.com/webhooks/overview"""

OPENAI_TYPES: Final = _read("""
    agent: environment.expired environment.failed environment.ready environment.suspended
    session.action_required session.created session.failed session.idle session.in_progress
    batch: cancelled completed expired failed
    eval: run.canceled run.failed run.succeeded
    fine_tuning: job.cancelled job.failed job.succeeded
    live: call.incoming transport.connected transport.incoming
    realtime: call.incoming
    response: cancelled completed failed incomplete
    safety: alert.created deactivation_issued org_alert.created warning_issued
    safety_identifier: blocked
""")
"""``*_webhook_event`` in openai (Python) 3.52.0: https://platform.openai.com/docs/api-reference/webhook-events"""

CLERK_TYPES: Final = _read("""
    email: created
    organization: created deleted updated
    organizationDomain: created deleted updated
    organizationInvitation: accepted created revoked
    organizationMembership: created deleted updated
    paymentAttempt: created updated
    permission: created deleted updated
    role: created deleted updated
    session: created ended removed revoked
    sms: created
    subscription: active created past_due updated
    subscriptionItem: abandoned active canceled created ended incomplete past_due upcoming updated
    user: created deleted updated
    waitlistEntry: created updated
""")
"""``WebhookEvent`` of @clerk/backend:
https://github.com/clerk/javascript/blob/main/packages/backend/src/api/resources/Webhooks.ts"""

RESEND_TYPES: Final = _read("""
    contact: created deleted updated
    domain: created deleted updated
    email: bounced clicked complained delivered delivery_delayed failed opened received scheduled sent
    suppressed
    inbox: created deleted draft.created draft.deleted draft.sent draft.updated email.received email.sent
    thread.assigned thread.created thread.folder.updated thread.labels.updated thread.unassigned updated
    suppression: added removed
""")
"""``WebhookEvent`` of resend (Node):
https://github.com/resend/resend-node/blob/canary/src/webhooks/interfaces/webhook-event.interface.ts"""
