"""The metrics by which runs are compared, each with its name, unit and direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """One number of a run.

    Args:
        name: the column in the table of runs.
        words: the name in a sentence.
        unit: the unit of a value, such as %.
        points: the unit of a difference between two values.
        lower_is_better: the direction.
        logarithmic: whether values are plotted on a logarithmic axis.
        title: the name in tables and on axes; `words` if not given.
        secondary: further metrics, taken from the same evaluation as the best value: their fields in the files of a
            run, by the column in the table of runs.
    """

    name: str
    words: str
    unit: str = ""
    points: str = ""
    lower_is_better: bool = True
    logarithmic: bool = False
    title: str = ""
    secondary: Mapping[str, str] = field(default_factory=dict)

    def format(self, value: float) -> str:
        """Format a value with its unit."""
        return f"{value:.2f} {self.unit}" if self.unit == "%" else f"{value:.3f} {self.unit}".rstrip()

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value is better than another."""
        return value < than if self.lower_is_better else value > than

    @property
    def label(self) -> str:
        """The title with the unit, as in tables and on axes."""
        title = self.title or self.words
        return f"{title} ({self.unit})" if self.unit else title

    @property
    def superlative(self) -> str:
        """The word for the best value: lowest or highest."""
        return "lowest" if self.lower_is_better else "highest"

    @property
    def sign(self) -> int:
        """The factor that makes lower values better."""
        return 1 if self.lower_is_better else -1

    @property
    def best(self) -> str:
        """The field of result.json with the best value of all evaluations during training."""
        return f"best_{self.name}"

    @property
    def exported(self) -> str:
        """The field of result.json with the value of the exported model."""
        return f"{self.name}_exported"


TEST_ERROR = Metric("test_error", "test error", "%", "points", secondary={"top5_error": "test_top5_error"})
BITS_PER_CHARACTER = Metric("test_bits_per_character", "test cross entropy", "bits/char", "bits")
SUBTASK_ERROR = Metric("subtask_error", "error on the current sub-task", "%", "points")
# The mean over the last quarter of the sub-tasks: how well a model still learns after many of them.
LATE_ERROR = Metric("late_subtask_error", "error on the last quarter of the sub-tasks", "%", "points")
FINAL_LOSS = Metric("final_training_loss", "final training loss", logarithmic=True, title="training loss, last epoch")
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        TEST_ERROR,
        BITS_PER_CHARACTER,
        Metric(TEST_ERROR.best, "lowest test error of any epoch", "%", "points"),
        Metric("top5_error", "top-5 error", "%", "points"),
        SUBTASK_ERROR,
        LATE_ERROR,
        Metric("first_subtask_error", "error on the first sub-task", "%", "points"),
        FINAL_LOSS,
        Metric("loss_gap", "gap between test and training loss", title="test loss \N{MINUS SIGN} training loss"),
        Metric("mean_training_loss", "mean training loss", logarithmic=True),
        Metric("early_jump", "largest rise of the loss in the first epoch"),
        Metric("cost", "time", "%", "%"),
        Metric("step_time", "time of a step over Normal's", "%", "%"),
        Metric("good_rates", "number of good learning rates", lower_is_better=False),
    )
}
