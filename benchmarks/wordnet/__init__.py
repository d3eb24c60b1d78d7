"""WordNet: accuracy by world, and the demo."""
