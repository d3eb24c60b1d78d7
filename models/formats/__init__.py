"""How checkpoints of this and other projects are read and written. A format knows a system, a system no format."""
