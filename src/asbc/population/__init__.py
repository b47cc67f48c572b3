"""Drivers as a population: pooled posteriors, new drivers, SUMO types, traffic on a ring."""

from asbc.population.population import Population

__all__ = ["Population"]
