#!/bin/sh
# One of several peers that share a volume of homes. Takes the first home that no other replica holds, and keeps it while
# it runs: so the homes outlive their containers. PEER_HOME becomes a link to it.
set -euf

homes=${PEER_HOMES:-/srv/homes}
number=1
while [ "$number" -le 1000 ]; do
    exec 9>"$homes/$number.lock" # stays open in the peer, and closes with it
    if flock -n 9; then
        mkdir -p -m 0700 "$homes/$number"
        ln -sfn "$homes/$number" "$PEER_HOME"
        exec peer "$@"
    fi
    number=$((number + 1))
done
echo "peer-replica: other replicas hold all homes in $homes" >&2
exit 1
