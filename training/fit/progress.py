"""The console output of a training run: a bar with loss, accuracy and time left, and a line per epoch."""

import sys
from types import TracebackType
from typing import Any

from rich import progress as rich

from training.fit.loop import Epoch, Step


class Progress:
    """Shows the steps and epochs of `training.fit.loop`; only the epochs if stdout is not a terminal."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.task: rich.TaskID | None = None
        self.bar = rich.Progress(
            rich.TextColumn("epoch {task.fields[epoch]}"),
            rich.BarColumn(),
            rich.TaskProgressColumn(),
            rich.TextColumn("loss {task.fields[loss]:.4f}  accuracy {task.fields[accuracy]:.4f}"),
            rich.TimeRemainingColumn(),
            transient=True,
            disable=not sys.stdout.isatty(),
        )

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def step(self, step: Step) -> None:
        fields: dict[str, Any] = {
            "epoch": f"{step.epoch}/{self.epochs}",
            "loss": step.loss,
            "accuracy": step.accuracy,
        }
        if self.task is None:
            self.task = self.bar.add_task("training", total=step.total, **fields)
        self.bar.update(self.task, completed=step.done, **fields)

    def epoch(self, epoch: Epoch) -> None:
        self.bar.console.print(
            f"epoch {epoch.number:3}/{self.epochs}  loss {epoch.loss:.4f}  accuracy {epoch.accuracy:.4f}  "
            f"validation loss {epoch.valid_loss:.4f}  accuracy {epoch.valid_accuracy:.4f}  "
            f"{epoch.seconds:.1f} s",
            highlight=False,
            soft_wrap=True,
        )
