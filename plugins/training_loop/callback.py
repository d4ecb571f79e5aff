"""The callback for the trainers of transformers and TRL."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.training_loop.generated_images import Pipeline
from plumbline.plugins.training_loop.step_results import StepResult


class EvaluationCallback(TrainerCallback):  # type: ignore[misc]  # transformers is half-typed
    """Callback that evaluates the trainer's model every few steps, or whenever the trainer evaluates it."""

    def __init__(
        self,
        evaluate: Callable[[Pipeline, int], StepResult],
        make_pipeline: Callable[[Any], Pipeline],
        every: int | None,
    ) -> None:
        """Create a callback.

        `evaluate` is called with the pipeline and the step. The other arguments are those of
        `Evaluation.make_callback`.
        """
        if every is not None and every < 1:
            raise ConfigError(
                f"every: expected 1 step or more, or None to evaluate whenever the trainer does, got {every!r}"
            )
        self.evaluate, self.make_pipeline, self.every = evaluate, make_pipeline, every

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Evaluate if the step number is a multiple of `every`."""
        if self.every is not None and state.global_step % self.every == 0:
            self._evaluate(state, parts["model"])

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Evaluate after the trainer's own evaluation, unless `every` is set."""
        if self.every is None:
            self._evaluate(state, parts["model"])

    def _evaluate(self, state: TrainerState, model: Any) -> None:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            result = self.evaluate(self.make_pipeline(model), state.global_step)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if state.is_world_process_zero:
            print(result)
