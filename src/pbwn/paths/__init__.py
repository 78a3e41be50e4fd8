"""Projecting many weights per call, as `functional` does, but faster: one path for each kind of memory."""
