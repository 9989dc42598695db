#!/bin/sh
# Sends a reading, signed with a secret: send-signed.sh URL SECRET-FILE METER VALUE
# While it runs, every user of the device can see the secret in the list of processes.
set -eu

signature=$(printf %s "$4" | openssl dgst -sha256 -hmac "$(cat "$2")" -r)
curl --silent --show-error --fail-with-body "$1" \
    --header "X-Signature: sha256=${signature%% *}" \
    --header "X-Meter: $3" \
    --header 'Content-Type: text/plain' \
    --data-binary "$4"
