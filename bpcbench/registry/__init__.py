"""Plugins: discovery, checks and options."""
