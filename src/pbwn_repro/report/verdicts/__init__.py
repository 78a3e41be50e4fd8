"""What the runs say to each claim of the paper, with an interval and in words."""
