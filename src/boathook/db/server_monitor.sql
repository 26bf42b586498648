-- name: read_safety
-- Reads whether and how durably this session can write, and how many commits wait for a synchronous standby.
select
    pg_backend_pid() as pid,
    current_setting('server_version') as version,
    current_setting('server_version_num')::integer as version_number,
    pg_is_in_recovery() as is_standby,
    current_setting('transaction_read_only') = 'on' as is_read_only,
    current_setting('server_encoding') as encoding,
    current_database() as database,
    current_user as role,
    current_setting('fsync') as fsync,
    current_setting('full_page_writes') as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('synchronous_standby_names') as synchronous_standby_names,
    (select count(*) from pg_stat_activity
     where wait_event = 'SyncRep' and datname = current_database()
         and state_change < clock_timestamp() - interval '3 seconds') as stalled
