"""Calibrating files of drivers with a trained posterior: draws, checks, corrections, outputs."""
