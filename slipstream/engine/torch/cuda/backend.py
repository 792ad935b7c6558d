"""The backend of a transformers model on CUDA."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
import triton

from slipstream.engine.checkpoint import NO_TRUST, Trust, directory_of
from slipstream.engine.errors import UnsupportedModelError
from slipstream.engine.generation_config import read_generation_config
from slipstream.engine.hidden_heads import HiddenStates
from slipstream.engine.model import MultiStepRunner, Reserved, Segment
from slipstream.engine.pages import pages_in
from slipstream.engine.pretrained.loading import DTYPES, load_pretrained
from slipstream.engine.pretrained.quantisation import Quantisation
from slipstream.engine.sequence import PageCopy
from slipstream.engine.torch.attention import NAME
from slipstream.engine.torch.cuda.attention import PAGED, compile_launcher, key_count
from slipstream.engine.torch.cuda.chooser import Chooser
from slipstream.engine.torch.cuda.fusing import Fused, fuse
from slipstream.engine.torch.cuda.logits import HostLogits
from slipstream.engine.torch.cuda.multi_step_runner import CudaRunner
from slipstream.engine.torch.cuda.recorded_forward import SETTLED_AFTER, RecordedForward
from slipstream.engine.torch.cuda.step import CHUNK, LONG_AFTER, LONG_CHUNK, QUERIES, Step, split
from slipstream.engine.torch.transformers_model import TransformersModel
from slipstream.processors import Processors, device_processor
from slipstream.sampling.blocks import BlockedLogits

EXACT_ROWS = (128,)
"""Row counts of a target's forwards, including padding: only one. cuBLAS and torch's reductions
choose the order of a sum by the row count. With one count there is one order, and a row's sums do
not depend on the rows beside it. Reading the weights takes about as long as multiplying them with
this many rows (docs/history/gpu.md)."""

DRAFT_ROWS = (1, 8, 16, 32, 64, 128)
"""Row counts of a draft's forwards. A draft only guesses, so each forward takes the smallest that
holds its rows."""

_TRIAL_TOKENS = 24
_TRIAL_SEQUENCES = 3
_TRIALS = 3
"""Trials at load in which a target's rows must keep their bits beside other rows."""


def load_cuda(
    name: str,
    *,
    device: str,
    dtype: str,
    page_size: int,
    exact: bool,
    trust: Trust = NO_TRUST,
    quantisation: Quantisation | None = None,
) -> CudaBackend:
    """Load a model directory or hub id. With ``exact`` a row's bits depend on its sequence alone.
    UnsupportedModelError if it cannot be served."""
    compile_launcher()
    loaded = load_pretrained(name, device=device, dtype=dtype, attention=NAME, trust=trust, quantisation=quantisation)
    torch.cuda.set_device(loaded.device)  # for this thread, which computes: Triton and graphs use the current device
    model = TransformersModel(
        loaded, read_generation_config(directory_of(name, weights=True, trust=trust)), kernels=PAGED
    )
    model.generation.log_warnings(name)
    row_counts = EXACT_ROWS if exact else DRAFT_ROWS
    return CudaBackend(model, page_size=page_size, row_counts=row_counts, fused=fuse(loaded))


class CudaBackend:
    """`Backend` of a transformers model on a CUDA device."""

    pads_sequences = False
    row_multiple = 1  # a forward's cost depends on its padded size, but choosing costs by the row
    warmed_lengths: tuple[int, ...] = ()
    settled_after = SETTLED_AFTER

    def __init__(
        self,
        model: TransformersModel,
        *,
        page_size: int,
        row_counts: Sequence[int],
        fused: Fused | None = None,
        may_record: bool = True,
    ) -> None:
        """``row_counts`` that forwards may have, rising; only one if a row's bits must depend on
        its sequence alone. ``fused``: the numbers of replaced modules. ``may_record`` is False if
        forwards must not become CUDA graphs."""
        self.model = model
        # The libraries' versions decide which kernels exist and which one is chosen.
        versions = torch.__version__, torch.version.cuda, triton.__version__
        chunks = CHUNK, LONG_AFTER, LONG_CHUNK
        tiles = sorted({key_count(shape, DTYPES[model.dtype]) for shape in model.layers})
        sums = (tuple(row_counts), QUERIES, tiles, chunks, fused, versions)
        self.mark = hashlib.sha256(repr(sums).encode()).hexdigest()[:4]
        self.single_rows = self.multi_step = len(row_counts) > 1
        self.hidden_states: HiddenStates | None = None
        self.multi_step_runner: MultiStepRunner | None = None
        self.processors = Processors()
        if model.device.type == "cuda":
            self.processors = device_processor(str(torch.cuda.get_device_properties(model.device).uuid))
        self._row_counts = row_counts
        self._may_record = may_record
        self._page_size = page_size
        self._forwards: dict[int, RecordedForward] = {}
        self._most_pages = 0
        self._host = HostLogits(model.vocabulary_size, DTYPES[model.dtype], pinned=model.device.type == "cuda")

    def reserve(self, memory_mib: float) -> Reserved:
        page_count = pages_in(memory_mib, self.model.bytes_per_token * self._page_size)
        self._most_pages = min(page_count, -(-self.model.context_length // self._page_size))
        try:
            byte_count = self.model.reserve(page_count, self._page_size)
            self._make_steps()
            if self.multi_step:
                self._make_runner()
            else:
                self._see_rows_alone(page_count)
        except torch.OutOfMemoryError as error:
            raise UnsupportedModelError(
                f"kv_memory_mib of {memory_mib:g} is more than {self.model.device} has left: {str(error).splitlines()[0]}"
            ) from error
        return Reserved(page_count, self._page_size, byte_count)

    def copy_pages(self, copies: list[PageCopy]) -> None:
        self.model.copy_pages(copies)

    def erase_pages(self, pages: list[int]) -> None:
        self.model.erase_pages(pages)

    @torch.inference_mode()
    def forward(self, segments: list[Segment]) -> BlockedLogits:
        """Return logits in the host's memory, which the next forward overwrites."""
        wanted = sum(segment.wanted for segment in segments)
        self._host.make_room(wanted)
        done = 0
        for part in split(segments, self._row_counts[-1]):
            forward = self._forward_of(sum(len(segment.tokens) for segment in part))
            count = forward.step.lay_out(part)
            logits = forward()
            if count:
                self._host.fetch(logits[:count], done)
                done += count
            self._wait()  # until then the device reads the step's integers and logits
        return self._host.first(wanted)

    def _see_rows_alone(self, page_count: int) -> None:
        """Raise UnsupportedModelError if a trial shows that rows depend on those beside them. So it
        is where each expert of a mixture multiplies the rows that chose it with the fastest kernel
        for that count."""
        size = self._page_size
        pages_each = min(-(-_TRIAL_TOKENS // size), page_count // _TRIAL_SEQUENCES)
        count = min(_TRIAL_TOKENS, pages_each * size, self.model.context_length)
        if not count:
            return  # there is no room for other sequences
        generator = torch.Generator().manual_seed(0)

        def drawn(place: int) -> Segment:
            """Return a segment in its own pages, because two writes to one place would race."""
            text = torch.randint(self.model.vocabulary_size, (count,), generator=generator).tolist()
            return Segment(text, 0, range(1 + place * pages_each, 1 + (place + 1) * pages_each), count)

        own = drawn(0)
        alone = self.forward([own]).stored.copy()
        for _ in range(_TRIALS):
            beside = self.forward([drawn(1), own, drawn(2)]).stored
            if not np.array_equal(beside[count : 2 * count], alone):
                raise UnsupportedModelError(
                    f"{self.model.architecture} in {self.model.dtype} on {self.model.device}: a row's numbers depend on the "
                    "rows beside it, so texts would depend on other requests; try bfloat16 or the CPU"
                )

    def _make_steps(self) -> None:
        """Allocate all steps with their attention's memory, so that a lack of memory shows before
        the first request."""
        for size in self._row_counts:
            step = self._forward_of(size).step
            if step.most_chunks > 1:
                for shape in self.model.layers:
                    step.partial(shape.head_count * shape.queries_per_key, shape.value_size)

    def _make_runner(self) -> None:
        most = self._row_counts[-1]
        chooser = Chooser(self.model.vocabulary_size, most, self.model.device)
        chooser.compile_kernels(DTYPES[self.model.dtype])
        self.multi_step_runner = CudaRunner(self._forward_of, chooser, most)

    def _forward_of(self, row_count: int) -> RecordedForward:
        """Return the smallest forward that has room."""
        size = next(count for count in self._row_counts if count >= row_count)
        if size not in self._forwards:
            step = Step(size, self._page_size, self._most_pages, self.model.device)
            self._forwards[size] = RecordedForward(self.model.compute, step, may_record=self._may_record)
        return self._forwards[size]

    def _wait(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()
