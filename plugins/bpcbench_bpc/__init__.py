"""Bayesian pseudo-coresets from expert trajectories: BPC-rKL, BPC-fKL, BPC-W, BPC-CD and FBPC."""
