"""Coresets that others distilled: their files become folders like those of `bpcbench export`."""
