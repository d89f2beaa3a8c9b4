"""DSPy modules that put signatures and retrievers together; export, load, ask."""

import os

# Prices of models come from the packages that are installed: nothing is fetched at run time.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # read by DSPy and litellm
os.environ.setdefault("MLFLOW_MODEL_CATALOG_URI", "")
