"""Trains a draft on the records of a target, step by step, so that it can stop and go on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from slipstream.distilling.checkpoints import Workplace
from slipstream.distilling.errors import DistilError
from slipstream.distilling.examples import collate, shuffled
from slipstream.distilling.objective import rejection
from slipstream.distilling.optimisers import optimisers, rate_at
from slipstream.distilling.records import SequenceRecord
from slipstream.distilling.settings import DistilSettings
from slipstream.distilling.student import Student
from slipstream.distilling.watch import StoppedError

_MAX_NORM = 1.0


class Training:
    """A draft on its way. After `run` the model has its new weights."""

    def __init__(
        self,
        student: Student,
        records: Sequence[SequenceRecord],
        vocabulary_size: int,
        settings: DistilSettings,
        workplace: Workplace,
    ) -> None:
        """Take the last checkpoint of the workplace, if there is one. DistilError."""
        self._student, self._records, self._vocabulary_size = student, records, vocabulary_size
        self._settings, self._workplace = settings, workplace
        self._optimisers = optimisers(student.model, settings.optimizer, settings.weight_decay)
        self.step = 0
        self.seconds = 0.0
        """Seconds of all its runs."""
        torch.manual_seed(settings.seed)
        state = workplace.load()
        if state is not None:
            self._restore(state)

    def run(self, tell: Callable[[int, int, float], None], stopped: Callable[[], bool]) -> None:
        """Take all steps that are left. ``tell`` gets the step, their count and the loss after each
        one. StoppedError once ``stopped`` answers True; DistilError if the loss is no number. The
        last step is saved too: the acceptance is still to be measured."""
        per_epoch = len(self._batches(0))
        step_count = per_epoch * self._settings.epochs
        self._student.model.train()
        saved = time.monotonic()
        for epoch in range(self.step // per_epoch, self._settings.epochs):
            for batch in self._batches(epoch)[self.step % per_epoch :]:
                began = time.monotonic()
                loss = self._take(batch, self._settings.learning_rate * rate_at(self.step, step_count))
                self.step += 1
                self.seconds += time.monotonic() - began
                tell(self.step, step_count, loss)
                wants_stop, is_last = stopped(), self.step == step_count
                if wants_stop or is_last or time.monotonic() - saved >= self._settings.checkpoint_seconds:
                    self._workplace.save(self._state())
                    saved = time.monotonic()
                if wants_stop:
                    raise StoppedError

    def _batches(self, epoch: int) -> list[list[SequenceRecord]]:
        rng = random.Random(f"{self._settings.seed}/{epoch}")
        return shuffled(self._records, self._settings.batch_tokens, rng)

    def _take(self, records: Sequence[SequenceRecord], learning_rate: float) -> float:
        settings, batch = self._settings, collate(records, self._settings.device)
        loss = rejection(
            self._student.logits(batch.ids, batch.places),
            batch.top_ids,
            batch.top_logprobs,
            temperature=settings.temperature,
            kl_weight=settings.kl,
            vocabulary_size=self._vocabulary_size,
        )
        self._student.model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._student.trained().values(), _MAX_NORM)
        if not torch.isfinite(norm):
            raise DistilError(
                f"the gradient of step {self.step + 1} is {float(norm)}: lower --learning-rate, now "
                f"{settings.learning_rate:g}, or train with --precision float32"
            )
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            optimiser.step()
        return float(loss.detach())

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "weights": {name: weight.detach() for name, weight in self._student.trained().items()},
            "optimisers": [each.state_dict() for each in self._optimisers],
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, weight in self._student.trained().items():
                weight.copy_(state["weights"][name])
        for optimiser, saved in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        if state["random_cuda"]:
            torch.cuda.set_rng_state_all(state["random_cuda"])
        self.step, self.seconds = state["step"], state["seconds"]
