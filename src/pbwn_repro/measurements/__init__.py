"""What is computed or timed in one go, without training runs: figure 1, table 5, times, gradients.

A measurement has a folder like a run's, and the same rule: `result.json` = done, the same call goes on otherwise.

    <out>/<artefact>/<scale>/<measurement>-<hash8>/   config.json  environment.json  parts/  result.json

`config.json` is {"measurement": name, "options": {...}}; the hash is that of its canonical form. The shape of a result
stands in the module that makes it: `landscape` for figure 1, `time_cost` for table 5, `gradients` for what the
constraint does to gradients.
"""

from pbwn_repro.measurements.measuring import MEASUREMENTS, folder_of, measure
from pbwn_repro.measurements.parts import Progress

__all__ = ["MEASUREMENTS", "Progress", "folder_of", "measure"]
