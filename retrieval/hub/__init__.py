"""Publishing and fetching checkpoints, and their cards."""
