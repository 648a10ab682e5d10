"""Transformers in JAX: attention, stacks, training and decoding, small enough to read."""
