"""Searching with an expensive scorer: recall against calls, overhead, rank."""
