"""Next-item recommendation: grids of systems and seeds."""
