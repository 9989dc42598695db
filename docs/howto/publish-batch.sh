#!/bin/sh
# Publish a file of JSON lines: publish-batch.sh FILE [URL]
# Sends it again if it is certain that nothing was published.
set -u
url=${2:-http://127.0.0.1:8080}
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

for attempt in 1 2 3 4 5; do
    status=$(curl --silent --show-error --max-time 60 \
        --header 'Content-Type: application/x-ndjson' --data-binary "@$1" \
        --output "$answer" --write-out '%{http_code}' "${url%/}/messages")
    case "$?/$status" in
    0/200) exit 0 ;;
    # Nothing was published. 7: there was no connection.
    0/429 | 0/503 | 7/*) sleep "$attempt" ;;
    *) break ;;
    esac
done
# The wrong lines, or the messages that were published nevertheless.
cat "$answer" >&2
exit 1
