"""How large an index may become: time and memory to build, open, grow and search."""
