"""Variational Bayesian pseudo-coresets (Lee, Lee & Lee, 2025) for bpcbench, with the mathematics as a plain library."""
