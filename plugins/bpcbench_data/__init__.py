"""Data sets for bpcbench."""
