"""What comes out of an evaluation: metrics, comparisons, files, the report."""
