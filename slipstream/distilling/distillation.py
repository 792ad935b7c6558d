"""The course of a distillation: read, measure, train, measure again, write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.distilling.checkpoints import Workplace
from slipstream.distilling.dataset import Dataset, read_dataset
from slipstream.distilling.errors import DistilError
from slipstream.distilling.estimate import Estimates, estimated, sampled_temperature
from slipstream.distilling.examples import in_order
from slipstream.distilling.folder import Lineage, weights_digest, write_folder
from slipstream.distilling.settings import DistilSettings
from slipstream.distilling.student import Student, draft_directory
from slipstream.distilling.targets import refuse_other_target
from slipstream.distilling.training import Training
from slipstream.distilling.watch import Tell, Watch
from slipstream.home import expanded
from slipstream.hosting.tokenizer_files import embedded_directory, load_tokenizer_files

_WHERE_PLACED = ("config", "out", "device", "threads", "checkpoint_seconds", "any_target")
"""Settings that a resumed training may change."""
_FOLDERS = ("target", "draft", "data")


@dataclass(frozen=True, slots=True)
class Result:
    """A finished distillation."""

    before: Estimates
    after: Estimates
    data: Dataset


def distil(settings: DistilSettings, tell: Tell, stopped: Callable[[], bool] = lambda: False) -> Result:
    """Train ``settings.draft`` on the data, and write the new draft into ``settings.out``.

    ``tell`` gets lines about the progress. Raises StoppedError once ``stopped`` answers True, and
    SlipstreamError with what would be right.
    """
    with Workplace(expanded(settings.out)) as workplace:
        return _distil(settings, workplace, Watch(tell, stopped))


def _distil(settings: DistilSettings, workplace: Workplace, watch: Watch) -> Result:
    began = time.time()
    directory = draft_directory(settings.draft)
    digest = weights_digest(directory)
    workplace.take(_plan(settings, digest))
    student = Student(directory, settings)
    data = read_dataset(
        expanded(settings.data),
        watch,
        max_length=min(settings.max_length, student.context_length),
        held_out=settings.held_out,
        begun_with=workplace.shards,
    )
    _refuse_other_tokenizers(settings, data)
    if not settings.any_target:
        refuse_other_target(settings.target, data.facts, settings.data)
    watch.tell(_size_of(data))
    if workplace.shards is None:
        workplace.begin({shard.name: shard.sha256 for shard in data.shards})
    before = _measure(student, settings, data, watch)
    watch.tell(f"acceptance before: {_tokens(before, settings.temperature)}")
    if settings.lora_rank:
        student.adapt(settings.lora_rank)
    training = Training(student, data.training, data.facts.vocabulary_size, settings, workplace)
    if training.step:
        watch.tell(f"resumed after step {training.step}")
    training.run(Progress(watch.tell, training.step), watch.stopped)
    student.settle()
    after = _measure(student, settings, data, watch)
    lineage = Lineage(settings, data, digest, before, after, began, training.seconds)
    write_folder(student, directory, workplace, lineage)
    return Result(before, after, data)


class Progress:
    """Tells how far a training is, now and then."""

    def __init__(self, tell: Tell, first_step: int, every_seconds: float = 5.0) -> None:
        self._tell, self._first_step, self._every = tell, first_step, every_seconds
        self._began = self._next = time.monotonic()
        self._losses: list[float] = []

    def __call__(self, step: int, step_count: int, loss: float) -> None:
        """Count a step."""
        self._losses.append(loss)
        now = time.monotonic()
        if now < self._next and step < step_count:
            return
        left = (now - self._began) / (step - self._first_step) * (step_count - step)
        mean = sum(self._losses) / len(self._losses)
        self._tell(f"step {step} of {step_count}: loss {mean:.4f}, {left:.0f} s left")
        self._next, self._losses = now + self._every, []


def _measure(student: Student, settings: DistilSettings, data: Dataset, watch: Watch) -> Estimates:
    student.model.eval()
    batches = in_order(data.held_out, settings.batch_tokens)
    return estimated(
        student.logits,
        watch.each(batches, len(batches), "measuring acceptance: batch"),
        temperature=settings.temperature,
        vocabulary_size=data.facts.vocabulary_size,
        device=settings.device,
    )


def _refuse_other_tokenizers(settings: DistilSettings, data: Dataset) -> None:
    """Raise DistilError unless draft, target and data have one tokenizer."""
    wanted = data.facts.tokenizer_fingerprint
    for role, model in (("target", settings.target), ("draft", settings.draft)):
        name = str(embedded_directory(role)) if model == "embedded" else model
        own = load_tokenizer_files(name, weights=False).fingerprint
        if own != wanted:
            raise DistilError(
                f"--{role} {model} has another tokenizer ({own[:12]}) than the target of --data, {data.facts.name} "
                f"({wanted[:12]}): token ids mean other texts, so it cannot be trained on them"
            )


def _plan(settings: DistilSettings, digest: str) -> dict[str, object]:
    """Return what a resumed training must share. A folder is the same one by any path."""
    given = settings.model_dump(exclude={*_WHERE_PLACED})
    folders = {name: expanded(given[name]) for name in _FOLDERS}
    resolved = {name: str(folder.resolve()) for name, folder in folders.items() if folder.exists()}
    return given | resolved | {"draft_weights": digest}


def _size_of(data: Dataset) -> str:
    rows = sum(len(record.positions) for record in data.training)
    unused = f"; {data.unused_count} sequences have none in reach" if data.unused_count else ""
    newer = f"; shards left out because they are newer: {data.newer_shard_count}" if data.newer_shard_count else ""
    return (
        f"{len(data.training):,} sequences with {rows:,} positions to train on, {len(data.held_out):,} sequences held "
        f"out, of {data.facts.name} (weights {data.facts.weights_fingerprint[:16]}){unused}{newer}"
    )


def _tokens(estimates: Estimates, temperature: float) -> str:
    at = sampled_temperature(temperature)
    return f"{estimates.greedy.token:.3f} at temperature 0, {estimates.sampled.token:.3f} at {at:g}"
