"""Top-k search with Mixture-of-Logits beside the reference."""
