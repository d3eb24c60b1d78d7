"""First stages: cheap retrievers, and the vector indices that they search."""
