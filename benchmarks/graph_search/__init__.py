"""Graph search with q-nets: recall, evaluations, time."""
