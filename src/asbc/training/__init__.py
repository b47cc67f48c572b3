"""The active loop as one Lightning fit: data module, round callback, checkpoints, run folder."""
