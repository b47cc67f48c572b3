"""Small tools every other package may use: keyed randomness, input checks, progress bars."""
