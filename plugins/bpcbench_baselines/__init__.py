"""Baselines for bpcbench: coresets that are not learned by gradient descent."""
