"""Gold cases, splits and metrics; the sample corpus and its gold set."""
