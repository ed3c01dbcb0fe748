"""Plugins: how they are found, checked and configured."""
