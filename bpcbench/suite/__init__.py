"""Suites: YAML documents, their keys and their validation."""
