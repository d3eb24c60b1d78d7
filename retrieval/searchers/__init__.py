"""Searchers: how the top items of a query are found at a cost."""
