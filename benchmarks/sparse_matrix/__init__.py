"""Sparse score matrices: memory, and the same bytes after kills."""
