"""Loads at the start and at every swap, with the generation pinned: watch.py ROOT"""

import os
import sys

from pin import pinned, swaps

for _ in swaps(sys.argv[1], every=0.05):
    try:
        with pinned(sys.argv[1]) as config:
            texts = [open(os.path.join(config, name)).read() for name in ("a", "b", "sub/c")]
    except OSError as error:
        # A load that failed is passed over until the next swap: what was loaded before still serves.
        print(error, file=sys.stderr, flush=True)
        continue
    print("loaded", *(text.strip() for text in texts), flush=True)
