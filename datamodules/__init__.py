"""Data: sources of collections, the training lists made of them, and how they are loaded."""

if __name__ != "simzoo.datamodules":
    raise ImportError("datamodules is a part of simzoo: import simzoo.datamodules instead of datamodules")
