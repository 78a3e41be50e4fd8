"""Unit-norm weights for any PyTorch model and optimizer."""

__version__ = "0.1.0"
