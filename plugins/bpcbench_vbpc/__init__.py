"""Variational Bayesian pseudo-coresets (Lee et al., 2025) for bpcbench, with the mathematics as a plain library."""
