"""What evaluate.py offers: one file a command, imported when it is called."""
