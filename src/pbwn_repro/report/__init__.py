"""From run folders alone to tables, figures and verdicts beside the paper's."""
