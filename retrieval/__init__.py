"""Search and evaluation: scorer, first stages, searchers, metrics, reports."""
