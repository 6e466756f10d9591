#!/bin/sh
# Loads at the start and whenever another generation is current, as a shell does it everywhere: by looking now and then.
#   watch.sh ROOT
# Needs flock(1) of util-linux; runs in dash, bash and busybox.
set -eu
root=$1 seen=

while :; do
    now=$(readlink "$root/..data" || :)
    if [ -n "$now" ] && [ "$now" != "$seen" ]; then
        # Opens the current generation, locks it, and makes sure that it still is the current one; else again.
        until exec 9<"$root/..data" && flock -s 9 || exit; [ "$root/..data" -ef /proc/self/fd/9 ]; do :; done
        seen=$now
        (cd -P /proc/self/fd/9 && echo loaded $(cat a b sub/c))
        exec 9<&-
    fi
    sleep 0.1
done
