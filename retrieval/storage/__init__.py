"""What is kept on disk between runs: representations, neighbour graphs, score matrices."""
