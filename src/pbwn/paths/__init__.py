"""Projecting many weights per call: the meaning of `functional`, faster. One path for each kind of memory."""
