"""Active simulation-based calibration of stochastic car-following models."""
