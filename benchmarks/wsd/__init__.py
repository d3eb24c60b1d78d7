"""Word senses: F1 of every text model on the unified evaluation framework, with and without the first sense's prior."""
