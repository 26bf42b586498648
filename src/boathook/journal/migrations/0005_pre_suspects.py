"""Lets those who look for suspects read an index that holds nothing else."""

revision = "0005_pre_suspects"
down_revision = "0004_pre_apps"
