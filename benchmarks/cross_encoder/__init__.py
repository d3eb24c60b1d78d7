"""Cross-encoders: pairs a second."""
