"""Suites: YAML documents, their validation and what they mean."""
