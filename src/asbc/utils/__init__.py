"""Small tools every other package may use: randomness, input checks, files, progress bars."""
