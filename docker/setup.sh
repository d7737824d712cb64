#!/bin/sh
# Once before a swarm starts: the bootstrap node's key, a signed manifest and a ticket. Run again it keeps what is there;
# a manifest edited after it was signed is refused.
set -euf

run=${PEER_RUN_DIR:-/srv/run}
address=${PEER_BOOTSTRAP_ADDRESS:?where the peers reach the bootstrap node, such as /dns4/bootstrap/tcp/4810}
manifest=$run/run.toml

if [ ! -s "$manifest" ]; then
    rm -f "$manifest" # an empty one is left by an attempt that was cut short
    set --
    for setting in ${PEER_RUN_SETTINGS:-}; do
        set -- "$@" --set "$setting"
    done
    peer manifest new "$manifest" "$@"
elif [ ! -e "$manifest.sig" ]; then
    peer manifest sign "$manifest"
fi
peer manifest check "$manifest"

# Under another name first: whoever reads the ticket finds a whole one.
peer ticket new "$manifest" --address "$address" --identity-path "$PEER_HOME/identity.key" >"$run/.ticket"
mv "$run/.ticket" "$run/ticket"
peer ticket show "@$run/ticket"
