"""One training run: data in, metrics, checkpoints and a result out. Knows no folders of other runs."""
