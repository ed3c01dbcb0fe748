"""Coresets outside a run: read, previewed, exported, and imported from files of others."""
