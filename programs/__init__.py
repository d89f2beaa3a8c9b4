"""DSPy modules that put signatures and retrievers together; export, load, ask."""
