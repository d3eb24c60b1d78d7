"""What every room speaks: records, representations, batches, targets, candidates, files written atomically."""

if __name__ != "simzoo.core":
    raise ImportError("core is a part of simzoo: import simzoo.core instead of core")
