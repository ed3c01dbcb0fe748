"""The store: what it keeps, where, and how it is written."""
