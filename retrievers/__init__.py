"""Documents to passages to an index; queries to hits. Knows nothing of DSPy or MLflow."""
