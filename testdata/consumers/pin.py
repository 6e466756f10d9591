"""Reads one complete generation, however slowly: pin.py ROOT

ROOT is required, and has the files a, b and sub/c. They are read after a line has arrived on standard input.
"""

import contextlib
import fcntl
import os
import sys
import time


@contextlib.contextmanager
def pinned(root, link="..data"):
    """The current generation's directory, which stays until the block ends."""
    path = os.path.join(root, link)
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # nothing published yet, or reaped between the link and the directory
            time.sleep(0.05)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                break  # locked, and still the current one
        except (BlockingIOError, FileNotFoundError):  # being reaped
            time.sleep(0.005)
        os.close(fd)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def swaps(root, link="..data", every=1.0):
    """Yields at once, and then whenever another generation is current."""
    path, seen = os.path.join(root, link), None
    while True:
        with contextlib.suppress(FileNotFoundError):
            now = (os.readlink(path), os.stat(path).st_ino)
            if now != seen:
                seen = now
                yield
        time.sleep(every)


if __name__ == "__main__":
    with pinned(sys.argv[1]) as config:
        print("pinned", flush=True)
        sys.stdin.readline()
        for name in ("a", "b", "sub/c"):
            with open(os.path.join(config, name)) as file:
                print(file.read(), end="")
