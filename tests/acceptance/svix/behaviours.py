"""Maps each behaviour that users of Svix's server rely on to its test.

The lines are those of the list of that server's own end-to-end tests; a test is named by its file and its name, with its
class before it if it has one. What boathook does otherwise on purpose is said in `ON_PURPOSE`.
"""

from typing import Final

APPS = "tests/acceptance/svix/test_applications.py"
CANARY = "tests/acceptance/svix/test_canary.py"
CLIENTS = "tests/acceptance/svix/test_clients.py"
CRASHES = "tests/acceptance/svix/test_crashes.py"
DELIVERY = "tests/acceptance/svix/test_delivery.py"
DOORS = "tests/acceptance/svix/test_authorization.py"
MESSAGES = "tests/acceptance/svix/test_messages.py"
OPERATIONAL = "tests/acceptance/svix/test_operational_webhooks.py"
TENANTS = "tests/acceptance/svix/test_tenants.py"
PYTHON = f"{CLIENTS}::test_a_pinned_python_client_works_unchanged"

BEHAVIOURS: Final[dict[str, tuple[str, ...]]] = {
    # Applications
    "application: create, get, put, delete, then 404": (
        f"{APPS}::TestApplications::test_are_created_read_replaced_and_deleted",
    ),
    "application: patch one field at a time; set and clear rate and uid; replace metadata": (
        f"{APPS}::TestApplications::test_a_patch_changes_one_field_and_leaves_the_others",
    ),
    "application: put with an unknown id creates": (
        f"{APPS}::TestApplications::test_putting_an_unknown_one_creates_it",
    ),
    "application: list of 10 by order, limit, iterator, prevIterator; bad iterator and limit 300 are 422": (
        f"{APPS}::TestApplications::test_lists_are_read_in_pages_both_ways",
    ),
    "application: uid conflicts on create and put, reuse, change, removal; the same uid in two organizations": (
        f"{APPS}::TestApplications::test_a_uid_belongs_to_one_at_a_time",
        f"{APPS}::TestApplications::test_a_bad_uid_is_refused",
    ),
    "application: get_or_create returns the stored one unchanged": (
        f"{APPS}::TestApplications::test_get_if_exists_returns_the_stored_one_unchanged",
    ),
    "application: one idempotency key": (
        f"{APPS}::TestApplications::test_an_idempotency_key_replays_the_response_and_refuses_another_body",
    ),
    # Endpoints
    "endpoint: defaults on create": (f"{APPS}::TestEndpoints::test_have_defaults",),
    "endpoint: patch of each field alone": (
        f"{APPS}::TestEndpoints::test_a_patch_changes_one_field_and_leaves_the_others",
    ),
    "endpoint: isolation between two applications; uid rules within and across": (
        f"{APPS}::TestEndpoints::test_of_two_applications_are_isolated",
        f"{TENANTS}::test_foreign_tokens_neither_see_nor_change_anything",
    ),
    "endpoint: put with an unknown id creates; put without event types or channels removes them": (
        f"{APPS}::TestEndpoints::test_put_replaces_all_but_the_secret_or_creates",
    ),
    "endpoint: metadata set and emptied": (
        f"{APPS}::TestEndpoints::test_a_patch_changes_one_field_and_leaves_the_others",
    ),
    "endpoint: list ordering both ways with prevIterator": (
        f"{APPS}::TestEndpoints::test_lists_are_read_in_pages_both_ways",
    ),
    "endpoint: empty channels and non-existing event types are 422": (
        f"{APPS}::TestEndpoints::test_bad_fields_are_refused",
    ),
    "endpoint: empty event types": (f"{APPS}::TestEndpoints::test_an_empty_list_of_types_means_all",),
    # Secrets
    "secret: rotation changes the key, or to a given one": (
        f"{APPS}::TestSecrets::test_rotate_to_a_given_key_or_a_new_one",
    ),
    "secret: custom short and long keys, Ed25519 in public form": (
        f"{APPS}::TestSecrets::test_short_and_long_keys_are_kept",
        f"{DELIVERY}::TestSignatures::test_a_key_is_never_shown_in_private_form",
    ),
    "secret: too short, too long, wrong prefix are 422": (f"{APPS}::TestSecrets::test_unfit_keys_are_refused",),
    "secret: ten rotations, then 400, and again once one expires": (
        f"{APPS}::TestSecrets::test_ten_old_keys_are_the_most",
    ),
    "secret: a delivery is signed by all live keys": (
        f"{DELIVERY}::TestSignatures::test_every_live_key_signs_and_the_current_one_first",
        f"{DELIVERY}::TestSignatures::test_a_key_without_grace_signs_no_more",
    ),
    "secret: mixed v1 and v1a signatures": (f"{DELIVERY}::TestSignatures::test_two_kinds_of_keys_sign_side_by_side",),
    "secret: the database holds the encrypted form": (
        f"{APPS}::TestSecrets::test_are_stored_encrypted",
        f"{CANARY}::test_no_secret_is_found_anywhere",
    ),
    "secret: unreadable without the key, and then an error that says why": (
        f"{DOORS}::TestLostKeys::test_a_secret_that_cannot_be_read_is_an_error_that_names_the_cause",
    ),
    # Endpoint headers
    "headers: put, patch, null removes; authorization hidden and listed as sensitive": (
        f"{APPS}::TestHeaders::test_are_put_and_patched",
    ),
    "headers: forbidden names are 422": (
        f"{APPS}::TestHeaders::test_that_would_steer_others_are_refused",
        f"{APPS}::TestHeaders::test_values_that_would_break_out_are_refused",
    ),
    "headers: really sent, letter case kept": (f"{DELIVERY}::TestHeaders::test_keep_their_case_and_change_at_once",),
    # Filters and limits
    "filter: by event type": (f"{DELIVERY}::TestRouting::test_by_event_type",),
    "filter: by channel": (f"{DELIVERY}::TestRouting::test_by_channel",),
    "limit: rate stored and cleared, and kept to": (
        f"{APPS}::TestEndpoints::test_a_patch_changes_one_field_and_leaves_the_others",
        f"{DELIVERY}::TestRates::test_an_endpoint_is_sent_no_more_in_a_second_than_its_rate",
    ),
    "limit: https only": (f"{DOORS}::TestHttpsOnly::test_plain_http_is_refused",),
    "send-example: svix.ping arrives": (f"{DELIVERY}::TestRouting::test_the_example_ping_has_a_success_payload",),
    # Stats
    "stats: zero, pending and sending counts, since and until, 29 days are 400": (
        f"{MESSAGES}::TestStatistics::test_count_attempts_by_status",
    ),
    # Recover
    "recover: older than 14 days is 422": (f"{MESSAGES}::TestRecovering::test_goes_back_two_weeks_at_most",),
    "recover: a failed message exactly once; those before since untouched": (
        f"{MESSAGES}::TestRecovering::test_resends_only_failed_messages_once",
    ),
    "recover: past one page": (f"{MESSAGES}::TestRecovering::test_reaches_past_one_page_without_loss_or_repetition",),
    # Messages
    "message: create, read, list; with_content on each": (
        f"{MESSAGES}::TestMessages::test_are_created_read_and_listed_with_content_or_without",
    ),
    "message: filter by channel": (f"{MESSAGES}::TestMessages::test_are_filtered_by_channel_type_and_tag",),
    "message: failed delivery recorded": (
        f"{DELIVERY}::TestResults::test_a_refused_message_is_retried_by_its_schedule",
    ),
    "message: three endpoints, one failing, then repaired; retry delivers": (
        f"{DELIVERY}::TestResults::test_of_three_endpoints_one_fails_until_it_is_repaired",
    ),
    "message: retention deletes the payload": (
        f"{MESSAGES}::TestMessages::test_lose_their_content_after_its_retention",
    ),
    "message: expunge": (f"{MESSAGES}::TestMessages::test_are_expunged_for_good",),
    "message: eventId conflict is 409": (f"{MESSAGES}::TestMessages::test_an_event_id_is_unique",),
    "message: 8 MB are 413": (f"{MESSAGES}::TestMessages::test_of_eight_megabytes_are_too_large",),
    "message: raw payload sent as is": (f"{DELIVERY}::TestResults::test_a_raw_payload_is_sent_as_it_is",),
    "message: implicit application creation": (f"{MESSAGES}::TestMessages::test_create_their_application_if_asked",),
    # Attempts
    "attempt: attempted messages by id and uid, channel, event types in four spellings": (
        f"{MESSAGES}::TestAttempts::test_are_found_in_every_way",
    ),
    "attempt: by status success, fail, sending; success is not also sending": (
        f"{DELIVERY}::TestResults::test_while_attempts_are_left_the_message_is_sending",
        f"{DELIVERY}::TestResults::test_a_success_is_not_also_sending_or_failed",
    ),
    "attempt: destinations with three endpoints, after one is deleted, forward and back": (
        f"{MESSAGES}::TestAttempts::test_destinations_are_listed_forward_and_back_and_after_a_deletion",
    ),
    "attempt: by endpoint and by message with status class, channel, event type": (
        f"{MESSAGES}::TestAttempts::test_are_found_in_every_way",
    ),
    "attempt: 200 is one attempt": (
        f"{DELIVERY}::TestResults::test_a_delivered_message_has_one_attempt_with_the_response",
    ),
    "attempt: 403 and 500 are schedule + 1 attempts": (
        f"{DELIVERY}::TestResults::test_a_refused_message_is_retried_by_its_schedule",
    ),
    "attempt: refused connection is code 0": (
        f"{DELIVERY}::TestResults::test_a_refused_connection_is_an_attempt_with_code_zero",
    ),
    "attempt: empty schedule is one attempt": (f"{DELIVERY}::TestResults::test_an_empty_schedule_means_one_attempt",),
    "attempt: paging 28 rows forward and back; before and after combined": (
        f"{MESSAGES}::TestAttempts::test_many_are_read_in_pages_forward_and_back",
    ),
    "attempt: expunge response": (f"{MESSAGES}::TestAttempts::test_a_response_is_expunged",),
    # Auth
    "auth: application token: own readable, another 404, create, put, delete, list 403": (
        f"{DOORS}::TestAuthentication::test_a_token_of_an_application_opens_that_application_only",
    ),
    "auth: dashboard-access without body": (f"{DOORS}::TestAuthentication::test_the_old_dashboard_needs_no_body",),
    "auth: nonsense tokens": (f"{DOORS}::TestAuthentication::test_nonsense_opens_nothing",),
    "auth: portal access with implicit application": (
        f"{DOORS}::TestAuthentication::test_portal_access_creates_the_application_if_asked",
    ),
    # Event types
    "event type: patch each field": (f"{DOORS}::TestEventTypes::test_a_patch_changes_one_field_and_leaves_the_others",),
    "event type: put creates": (f"{DOORS}::TestEventTypes::test_putting_creates_under_the_name_of_the_path",),
    "event type: create, read, list with and without content; invalid schema 422": (
        f"{DOORS}::TestEventTypes::test_schemas_are_shown_on_request_and_validated",
    ),
    "event type: archive visible": (
        f"{DOORS}::TestEventTypes::test_archived_types_are_listed_on_request_and_can_be_recreated",
    ),
    "event type: feature flags (none, other, both)": (
        f"{DOORS}::TestEventTypes::test_feature_flags_hide_them_from_portals_without",
    ),
    "event type: list paging": (f"{DOORS}::TestEventTypes::test_lists_are_read_in_pages",),
    # Health
    "health: ping with and without trailing slash": (
        f"{DOORS}::TestTheRest::test_health_needs_no_token_and_has_no_body",
    ),
    # Operational webhooks
    "operational: created, updated (also on rotation), deleted; failing then exhausted in order": (
        f"{OPERATIONAL}::TestOperationalWebhooks::test_report_endpoint_changes_and_failing_attempts",
    ),
    "operational: every type declared": (f"{DOORS}::TestTheRest::test_operational_endpoints_are_kept_like_others",),
    # Worker
    "worker: redirect not followed": (f"{DELIVERY}::TestResults::test_a_redirect_is_not_followed",),
    "worker: disabled after repeated failure past the grace time": (
        "tests/postgres/delivery/test_sender.py::test_nothing_but_failures_for_days_disable_an_endpoint",
    ),
    "worker: not disabled if the failures are further apart, nor after a success between": (
        "tests/postgres/delivery/test_sender.py::test_failures_far_apart_begin_a_new_count",
    ),
    "worker: deleted application or endpoint gets nothing": (
        f"{DELIVERY}::TestRouting::test_disabled_and_deleted_endpoints_get_nothing",
        f"{DELIVERY}::TestRouting::test_a_deleted_application_is_sent_nothing_more",
    ),
    # Client
    "client: blocked addresses": (
        "tests/unit/test_addresses.py::test_non_public_addresses_are_denied",
        "tests/unit/test_sender.py::test_blocked_addresses_get_no_connection",
    ),
    "client: delivery through SOCKS5 and HTTP proxy, with bypass lists": (
        "tests/unit/test_guard.py::test_the_proxy_gets_the_checked_address_and_the_receiver_the_name",
        "tests/unit/test_guard.py::test_the_bypass_list",
    ),
    # Store
    "store: prune deletes old and keeps new": (
        "tests/postgres/db/test_maintenance.py::test_an_old_week_is_dropped_and_counted",
        "tests/postgres/db/test_maintenance.py::test_a_week_is_kept_until_its_last_day_is_old_enough",
    ),
    "store: migrations apply once, run concurrently, stop on failure": (
        "tests/postgres/db/test_schema.py::test_migrating_again_changes_nothing",
        "tests/postgres/db/test_schema.py::test_processes_that_start_together_migrate_once",
        "tests/postgres/db/test_schema.py::test_a_refused_migration_changes_nothing_and_is_named",
    ),
    # Not tested there
    "beyond: crash between commit and enqueue": (
        f"{CRASHES}::test_accepted_messages_arrive_after_any_process_is_killed",
        f"{CRASHES}::test_accepted_messages_arrive_after_a_full_kill_and_restart",
    ),
    "beyond: redelivery after a worker is killed": (f"{CRASHES}::test_a_sender_killed_at_every_point_loses_nothing",),
    "beyond: recover over more than one page": (
        f"{MESSAGES}::TestRecovering::test_reaches_past_one_page_without_loss_or_repetition",
    ),
    "beyond: throttle": (
        f"{DELIVERY}::TestRates::test_an_endpoint_is_sent_no_more_in_a_second_than_its_rate",
        f"{DELIVERY}::TestRates::test_without_a_rate_messages_arrive_faster",
    ),
    "beyond: concurrency limits": ("tests/postgres/delivery/test_sender.py::test_concurrency_holds_over_two_senders",),
    "beyond: body size and time limits of receivers": (
        "tests/unit/test_sender.py::test_a_huge_body_is_cut_off_and_the_status_counts",
        "tests/unit/test_sender.py::test_a_slow_body_is_cut_off_and_the_status_counts",
    ),
    "beyond: official clients of both generations": (
        PYTHON,
        f"{CLIENTS}::test_the_newest_python_client_works_unchanged",
        "tests/acceptance/svix/test_official_clients.py::test_an_official_client_gets_what_it_expects_from_every_method",
    ),
}

ON_PURPOSE: Final[dict[str, tuple[str, ...]]] = {
    "an empty list of event types means all instead of 422": (
        f"{APPS}::TestEndpoints::test_an_empty_list_of_types_means_all",
    ),
    "the same idempotency key with another body is an error instead of the first answer": (
        f"{APPS}::TestApplications::test_an_idempotency_key_replays_the_response_and_refuses_another_body",
        f"{MESSAGES}::TestMessages::test_one_idempotency_key_makes_one_message",
    ),
    "a rotation is answered by what the client can read instead of always 204": (
        f"{APPS}::TestSecrets::test_rotation_status_depends_on_the_clients_user_agent",
    ),
    "/health is 204": (f"{DOORS}::TestTheRest::test_health_needs_no_token_and_has_no_body",),
    "error bodies are always JSON": (f"{DOORS}::TestTheRest::test_every_error_is_json",),
    "done is true only at the end": (
        f"{MESSAGES}::TestAttempts::test_destinations_are_listed_forward_and_back_and_after_a_deletion",
    ),
    "a secret that cannot be read is a 500 whose JSON body names the cause": (
        f"{DOORS}::TestLostKeys::test_a_secret_that_cannot_be_read_is_an_error_that_names_the_cause",
    ),
    "a manual resend that fails leaves the planned attempts alone": (
        f"{DELIVERY}::TestResending::test_makes_one_manual_attempt_besides_the_scheduled_ones",
    ),
}

NOT_HERE: Final[dict[str, str]] = {
    "loss of Redis": "there is none; what PostgreSQL's loss does is tested in tests/postgres/delivery/test_outages.py",
    "store: wipe one organization": "there is no such command; applications are deleted one by one, and only by their own",
    "store: migrations revert": "migrations only go forward; one that fails changes nothing",
    "secrets written before encryption, legacy unmarked keys": "secrets were encrypted from the first release on",
}
