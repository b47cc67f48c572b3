"""How good a posterior is: window scores, driving measures, calibration of the posterior."""
