"""First-party evaluators: what is said of stored predictions."""
