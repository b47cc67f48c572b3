"""Train a posterior estimator by the active loop: `python train.py residual=matern seed=1`."""

import sys

from asbc.commands import start

if __name__ == "__main__":
    start("train", sys.argv[1:])
