"""Torch networks, preprocessing and inferences for bpcbench, and a plain library for other torch plugins."""
