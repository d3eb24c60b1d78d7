"""Searchers of Mixture-of-Logits, over the representations of all items."""
