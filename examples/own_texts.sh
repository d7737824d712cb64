#!/bin/sh
# Plan a run that trains on your own texts: sh examples/own_texts.sh FOLDER
#
# Every volunteer of such a run names a folder of texts; the texts stay on the volunteer's machine. The script writes a
# signed manifest into the current folder, tells what its method costs, and plays four such peers in virtual time.
set -eu

folder=${1:?give a folder with your texts}
echo "$(find "$folder" -type f | wc -l) files, $(du -sk "$folder" | cut -f1) KiB of text"

peer manifest new own-texts.toml --set name=own-texts --set data.kind=text --set sync_every=300
peer manifest check own-texts.toml
peer manifest show own-texts.toml

peer simulate --peers 4 --hours 2 --link cable --churn 0.2 --sync-every 300

echo "try it here:  peer swarm --manifest own-texts.toml --peers 2 --rounds 4 --data $folder"
echo "go online:    peer bootstrap own-texts.toml"
