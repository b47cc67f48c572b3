"""What ASBC is compared with: Bayesian IDM calibrations, point fits and floors."""
