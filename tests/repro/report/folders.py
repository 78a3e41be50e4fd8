"""Run folders written by hand, as a finished run would have left them, in no time."""

import json

from pbwn_repro.catalog import Plan, find
from pbwn_repro.config import read_config
from pbwn_repro.runs.folder import RunFolder, to_json
from pbwn_repro.runs.resolution import complete
from pbwn_repro.tasks import metric_of

STEPS_PER_EPOCH = 20
ENVIRONMENT = {
    "data": {"name": "mnist", "sha256": "0" * 64, "origin": "a drawer"},
    "device": "cpu",
    "packages": {"torch": "2.13.0"},
    "processor": "An abacus",
    "threads": 1,
}


def config_of(plan, *, data=None):
    """The configuration of a planned run, on data that nobody has to load."""
    fields, _ = complete(plan.overrides)
    fields["data"] |= {"name": data, "digest": "1" * 64} if data else {"digest": "0" * 64}
    return read_config(fields)


def plans(artefact, scale="paper", *, seeds=1, **labels):
    """The planned runs with these labels, such as method='pbwn'."""
    only = {name: [str(value)] for name, value in labels.items()}
    return find(artefact).plans(scale, seeds=seeds, only=only)


def own_plan(**overrides):
    """A run of `pbwn train`, which belongs to no artefact."""
    return Plan("train", "", {}, {"model": "resnet-20", "epochs": 4, **overrides})


def write_run(
    root,
    plan,
    *,
    errors=(5.0, 3.0),
    losses=(2.0, 1.0),
    top5=None,
    data=None,
    state="done",
    environment=ENVIRONMENT,
    deviation=1e-7,
):
    """Write the folder of a run whose test error and training loss go through these values, evenly spread.

    Where the task is judged by another metric, `errors` are its values. Each is the value at the end of its share of
    the epochs. `state` may be done, unfinished or diverged.
    """
    config = config_of(plan, data=data)
    folder = RunFolder.of(config, root, plan.artefact, plan.scale)
    folder.path.mkdir(parents=True)
    folder.config.write_bytes(to_json(config.document))
    folder.environment.write_bytes(to_json(environment))
    steps = config.steps or config.epochs * STEPS_PER_EPOCH
    lines, evaluations = [], []
    every = config.evaluate_every or STEPS_PER_EPOCH
    for step in range(1, steps + 1):
        if step % config.log_every == 0 or step == steps:
            lines.append({"step": step, "loss": _at(losses, step, steps)})
        if step % every == 0 or step == steps:
            line = {"step": step, "epoch": step / STEPS_PER_EPOCH, metric_of(config).name: _at(errors, step, steps)}
            line |= {"test_top5_error": _at(top5, step, steps)} if top5 else {}
            line |= {"test_loss": 1.0, "weight_norms": [0.5, 0.8, 1.0, 1.1, 2.0]}
            line |= {} if config.method in ("normal", "wn") else {"deviation": deviation}
            lines.append(line)
            evaluations.append(line)
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if state == "diverged":
        (folder.path / "diverged.json").write_bytes(to_json({"step": 7, "message": "the loss is nan"}))
    if state == "done":
        folder.result.write_bytes(to_json(_result(config, evaluations, steps)))
    return folder.path


def cell_at(section, row, column):
    """A cell by the titles of its row and column."""
    [key] = [each.key for each in section.table.rows if each.title == row]
    [at] = [each for each in section.table.columns if each.title == column]
    return section.table.cells[key, at]


def section(report, artefact, scale="paper", **variant):
    """The section of an artefact in a report."""
    [found] = [
        each
        for each in report.sections
        if (each.artefact.name, each.scale, dict(each.variant)) == (artefact, scale, variant)
    ]
    return found


def _result(config, evaluations, steps):
    name = metric_of(config).name
    best = min(evaluations, key=lambda line: line[name])
    return {
        **{"run": config.hash, "steps": steps, "skipped_steps": 0, "parameters": 10, "constrained_weights": 2},
        **{name: evaluations[-1][name], f"{name}_exported": evaluations[-1][name]},
        **{f"best_{name}": best[name], "best_step": best["step"]},
        **{"test_top5_error": evaluations[-1].get("test_top5_error")},
        **{"deviation": None, "deviation_exported": None},
    }


def _at(values, step, steps):
    return values[min(len(values) - 1, (step - 1) * len(values) // steps)]
