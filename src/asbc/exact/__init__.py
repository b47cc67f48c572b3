"""The exact posterior of a driver: its likelihood in small matrices, NUTS, importance sampling."""
