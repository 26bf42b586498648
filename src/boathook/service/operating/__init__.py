"""What operators see and do: dead letters, search, statistics, alerts, jobs, checks and the platform of apps."""
