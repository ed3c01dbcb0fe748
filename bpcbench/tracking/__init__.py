"""MLflow as a view of the store."""
