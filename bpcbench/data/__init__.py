"""Data sets: splits, conversion and download."""
