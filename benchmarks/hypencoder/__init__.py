"""Hypencoder beside BE-Base: training, speed, what carries over."""
