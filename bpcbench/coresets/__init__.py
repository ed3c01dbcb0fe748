"""Coresets outside a run."""
