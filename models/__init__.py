"""Learned similarities: the contract in `models.similarity`, one file a system beside it."""
