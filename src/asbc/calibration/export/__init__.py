"""What a calibration leaves on disk: draws, tables, ArviZ data, SUMO types."""
