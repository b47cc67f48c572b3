"""Score a trained run: `python evaluate.py run=RUN_DIR`, on its own test split or other data."""

import sys

from asbc.commands import start

if __name__ == "__main__":
    start("evaluate", sys.argv[1:])
