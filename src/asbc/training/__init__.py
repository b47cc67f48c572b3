"""The active loop as one Lightning fit: simulations, rounds, checkpoints and loggers."""
