"""The experiment suite: every table and figure of the paper. Imports `pbwn`, never the other way round."""
