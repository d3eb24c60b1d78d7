"""The server: requests a second, the slowest of them, and a long run with items that come and go."""
