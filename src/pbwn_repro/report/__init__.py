"""From run folders to one table of runs, to cells and verdicts, to figures, tables and a page."""
