"""Measurements: the cost of the projection, error landscapes, gradients and conditioning."""
