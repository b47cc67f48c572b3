"""Posteriors trained for what they are used for: predictions of recorded drivers."""
