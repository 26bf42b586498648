#!/bin/sh
# Creates the secrets of compose.yaml that are missing in ./secrets. Put the sender's own secret into stripe_secret.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
# The container's user does not exist on this host, so the files are readable, and only the folder is private.
make_secret() {
    [ -s "secrets/$1" ] || printf '%s' "$2" > "secrets/$1"
    chmod 644 "secrets/$1"
}
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
make_secret database_password "$(random)"
make_secret database_url "postgresql://boathook:$(cat secrets/database_password)@postgres:5432/boathook"
make_secret encryption_key "$(random)"
make_secret stripe_secret "whsec_$(random)"
