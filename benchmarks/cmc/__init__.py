"""CMC: its tables, its speed, its training on stored vectors."""
