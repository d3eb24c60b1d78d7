"""An engine behind HTTP: search, add, update, remove, health and metrics."""
