"""Readers of data layouts, one file a layout."""
