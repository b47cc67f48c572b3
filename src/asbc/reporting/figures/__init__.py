"""Figures, one file each: functions from results to a matplotlib Figure, no files, no globals."""
