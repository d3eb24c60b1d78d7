"""Learned similarities: the contract in `simzoo.models.similarity`, one file a system beside it."""

if __name__ != "simzoo.models":
    raise ImportError("models is a part of simzoo: import simzoo.models instead of models")
