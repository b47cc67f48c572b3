"""Synthetic recordings: highD-shaped files of congested traffic with known drivers."""
