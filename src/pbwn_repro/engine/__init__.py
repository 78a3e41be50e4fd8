"""A single training run: the training loop, metrics, checkpoints and the result. Independent of other runs."""
