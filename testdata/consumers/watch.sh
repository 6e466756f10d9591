#!/bin/sh
# Loads at the start and whenever another generation is current, as a shell does it everywhere: by looking now and then.
#   watch.sh ROOT
# Needs flock(1) of util-linux; runs in dash, bash and busybox.
set -eu
root=$1 seen=

# In a subshell, whose end closes the descriptor, and which is all that ends where the link leads nowhere.
load() (
    # Opens the current generation, locks it, and makes sure that it still is the current one; else again.
    until exec 9<"$root/..data" && flock -s 9 || exit; [ "$root/..data" -ef /proc/self/fd/9 ]; do :; done
    cd -P /proc/self/fd/9 && texts=$(cat a b sub/c) && echo loaded $texts
)

while :; do
    now=$(readlink "$root/..data" || :)
    if [ -n "$now" ] && [ "$now" != "$seen" ]; then
        seen=$now
        # A load that failed is passed over until the next swap: what was loaded before still serves.
        load || echo "not loaded: $now" >&2
    fi
    sleep 0.1
done
