#!/bin/sh
# Reads one complete generation, however slowly: pin.sh ROOT
# ROOT is required, and has the files a, b and sub/c. They are read after a line has arrived on standard input.
# Needs flock(1) of util-linux; runs in dash, bash and busybox.
set -eu
root=$1

# Opens the current generation, locks it, and makes sure that it still is the current one; else again.
until exec 9<"$root/..data" && flock -s 9 || exit; [ "$root/..data" -ef /proc/self/fd/9 ]; do :; done
cd -P /proc/self/fd/9

# From here relative paths only. The generation stays until the shell, and every child that inherited it, has ended.
echo pinned
read -r _
cat a b sub/c
