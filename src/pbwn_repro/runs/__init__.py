"""The run folder's contract, and what fills it."""
