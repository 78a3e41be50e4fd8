"""Run folders: their layout, the jobs that fill them, and sweeps over many jobs."""
