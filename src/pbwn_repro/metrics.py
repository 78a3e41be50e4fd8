"""What a run is judged by: metrics with a name, a unit and a direction. Nothing that shows runs knows more of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """One number of a run.

    Args:
        name: that of its column in the table of runs.
        words: what a sentence calls it.
        unit: of a value, such as %; `points` is the unit of a difference of two values.
        lower_is_better: the direction.
        logarithmic: whether its values are drawn on a logarithmic axis.
        title: what a table or an axis calls it, where that is not its words.
        beside: further metrics of an evaluation, at the best one: their columns, and their fields in the files.
    """

    name: str
    words: str
    unit: str = ""
    points: str = ""
    lower_is_better: bool = True
    logarithmic: bool = False
    title: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)

    def shown(self, value: float) -> str:
        """A value as people read it, with its unit."""
        return f"{value:.2f} {self.unit}" if self.unit == "%" else f"{value:.3f} {self.unit}".rstrip()

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value is better than another."""
        return value < than if self.lower_is_better else value > than

    @property
    def label(self) -> str:
        """Its title with the unit, as a table or an axis has it."""
        title = self.title or self.words
        return f"{title} ({self.unit})" if self.unit else title

    @property
    def lowest(self) -> str:
        """What its best value is."""
        return "lowest" if self.lower_is_better else "highest"

    @property
    def sign(self) -> int:
        """What a value is multiplied by, so that less is better."""
        return 1 if self.lower_is_better else -1

    @property
    def best(self) -> str:
        """Its field of result.json for the best evaluation on the way."""
        return f"best_{self.name}"

    @property
    def exported(self) -> str:
        """Its field of result.json for the exported model."""
        return f"{self.name}_exported"


TEST_ERROR = Metric("test_error", "test error", "%", "points", beside={"top5_error": "test_top5_error"})
BITS_PER_CHARACTER = Metric("test_bits_per_character", "test cross entropy", "bits/char", "bits")
SUBTASK_ERROR = Metric("subtask_error", "error on the present sub-task", "%", "points")
# The mean over the last quarter of the sub-tasks: what a model can still learn after many.
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
