"""Search and evaluation: scorer, first stages, searchers, mining, teaching."""

if __name__ != "simzoo.retrieval":
    raise ImportError("retrieval is a part of simzoo: import simzoo.retrieval instead of retrieval")
