"""transformers' own classes over paged KV. The import takes seconds, so only a service of such a
model imports this."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from slipstream.engine.checkpoint import NO_TRUST, Trust, directory_of
from slipstream.engine.errors import STOCK_ENGINES, RankGroupError, UnsupportedModelError
from slipstream.engine.generation_config import parse_generation_config, read_generation_config
from slipstream.engine.pretrained import rotary
from slipstream.engine.pretrained.fingerprint import experts_of, weights_fingerprint
from slipstream.engine.pretrained.loading import DTYPES, load_pretrained
from slipstream.engine.pretrained.quantisation import Quantisation
from slipstream.engine.sequence import PageCopy
from slipstream.engine.torch import activations, attention, capture, experts, packing
from slipstream.engine.torch.counted_positions import CountedPositions, counts_positions
from slipstream.engine.torch.hidden_states import HookedStates
from slipstream.engine.torch.kv_memory import KvMemory, LayerShape, bytes_per_page
from slipstream.engine.torch.plan import StepPlan

_PROBE_ROWS = 8


class Step(attention.LaidOut, Protocol):
    """The part of a step that a model's modules read."""

    @property
    def input_ids(self) -> torch.Tensor:
        """Int64 ``[1, rows]``."""

    @property
    def positions(self) -> torch.Tensor:
        """Int64 ``[1, rows]``."""

    @property
    def logit_rows(self) -> torch.Tensor:
        """Int64 ``[logits]``: the rows whose logits are wanted."""


class Whole(NamedTuple):
    """The facts of a whole model, of which this process has a part."""

    vocabulary_size: int
    fingerprint: Callable[[tuple[int, ...]], str]
    """Returns the weights' fingerprint. Argument: the end tokens."""


class TransformersModel:
    """A decoder-only transformers model over paged KV."""

    def __init__(
        self,
        model: Any,
        generation: Mapping[str, Any],
        *,
        single_rows: bool = False,
        kernels: attention.Kernels = attention.GATHERED,
        whole: Whole | None = None,
    ) -> None:
        """Wrap a loaded ``PreTrainedModel``. UnsupportedModelError with the reason if it cannot be
        served. ``generation`` is its generation_config.json.

        ``single_rows`` lays the layers out for forwards of one row. ``kernels`` compute the
        attention of its steps. ``whole`` is given for a part of a model. Its forwards are not
        captured, because a trial of a capture would compute twice on one rank alone.
        """
        self._model = model
        config = model.config.get_text_config()
        self.architecture = type(model).__name__
        is_quantised = bool(getattr(model, "is_quantized", False))
        if whole is None:
            head = model.get_output_embeddings()
            rows = getattr(head, "out_features", head.weight.shape[0])  # quantised weights may have another shape
            whole = Whole(int(rows), lambda ends: weights_fingerprint(model, ends))
            is_small = model.device.type == "cpu" and model.num_parameters() <= capture.MAX_PARAMETERS
            # Which experts there are to compute depends on the rows.
            may_capture = is_small and not is_quantised and experts_of(model) != experts.NAME
        else:
            may_capture = False
        self.vocabulary_size = whole.vocabulary_size
        declared = int(getattr(config, "max_position_embeddings", 0) or 2**20)
        self.context_length = rotary.steady_context_length(config, declared)
        ends = getattr(config, "eos_token_id", None)
        self.generation = parse_generation_config(generation, self.vocabulary_size, ends)
        self.end_token_ids = self.generation.end_token_ids
        self.sampling_defaults, self.length_defaults = self.generation.sampling, self.generation.lengths
        self.dtype = next(name for name, dtype in DTYPES.items() if dtype == model.dtype)
        self.device = model.device
        self.weights_fingerprint = whole.fingerprint(self.end_token_ids)
        if self.device.type == "cpu":
            activations.compute_in_even_parts(model)
        if is_quantised:
            self.layers = _probe_layers(model)
        else:
            self.layers = _probe_packed(model, packing.FOR_SINGLE_ROWS if single_rows else 0)
        if self.device.type == "cpu" and not single_rows:
            activations.compute_single_gates_alike(model)
            activations.route_in_whole_vectors(model)
        if experts_of(model) == experts.NAME:
            experts.pack(model)
        self.bytes_per_token = bytes_per_page(self.layers, 1, model.dtype)
        self._memory: KvMemory | None = None
        self._kernels = kernels
        self._counts_positions = counts_positions(model)
        self.needs_trial = experts.is_mixture(model) or activations.has_partial_vectors(model)
        """True if the code of its class may let rows depend on one another."""
        self._run: Callable[[StepPlan], torch.Tensor] = self.compute
        self.settled_after = 1
        if may_capture:
            self._run = capture.CapturedForward(self.compute, packing.packed_weights(model))
            self.settled_after = capture.SETTLED_AFTER
        self.hidden_states = HookedStates(model, self._pass_modules)
        # Our attention has its own mask. A mask of four dimensions keeps transformers from
        # computing one.
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=self.device)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        device: str,
        dtype: str,
        single_rows: bool = False,
        trust: Trust = NO_TRUST,
        quantisation: Quantisation | None = None,
    ) -> TransformersModel:
        """Load a model directory or hub id. UnsupportedModelError says what is missing or cannot be
        served."""
        even = None if single_rows else experts.NAME  # a draft only guesses
        model = load_pretrained(
            name,
            device=device,
            dtype=dtype,
            attention=attention.NAME,
            experts=even,
            trust=trust,
            quantisation=quantisation,
        )
        generation = read_generation_config(directory_of(name, weights=True, trust=trust))
        served = cls(model, generation, single_rows=single_rows)
        served.generation.log_warnings(name)
        return served

    def _pass_modules(self) -> None:
        """Compute each forward through the modules: a capture would not call their hooks."""
        self._run = self.compute
        self.settled_after = 1

    def reserve(self, page_count: int, page_size: int) -> int:
        self._memory = KvMemory(self.layers, page_count, page_size, self._model.dtype, self.device)
        return self._memory.byte_count

    def copy_pages(self, copies: list[PageCopy]) -> None:
        assert self._memory is not None, "reserve() comes first"
        self._memory.copy(copies)

    def erase_pages(self, pages: list[int]) -> None:
        assert self._memory is not None, "reserve() comes first"
        self._memory.erase(pages)

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> torch.Tensor:
        return self._run(plan)[: plan.logit_count]

    def compute(self, step: Step) -> torch.Tensor:
        """Return the logits at all of a step's logit rows, including padding."""
        assert self._memory is not None, "reserve() comes first"
        output = self._model(
            input_ids=step.input_ids,
            position_ids=step.positions,
            attention_mask=self._no_mask,
            use_cache=False,
            logits_to_keep=step.logit_rows,
            plan=attention.Attending(step, self._memory, self._kernels),
            **({"past_key_values": CountedPositions(step.positions)} if self._counts_positions else {}),
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def _probe_packed(model: Any, least_weights: int) -> list[LayerShape]:
    """Pack the model's layers and probe it. A model that reads its layers' weights itself stays
    unpacked."""
    packed = packing.pack(model, least_weights)
    try:
        return _probe_layers(model)
    except UnsupportedModelError:
        packed.undo()
        return _probe_layers(model)


def _probe_layers(model: Any) -> list[LayerShape]:
    """Return the attention layers' shapes from one small dense forward, which also shows that
    ``plan`` arrives."""
    name = type(model).__name__
    parameters = inspect.signature(model.forward).parameters
    if "logits_to_keep" not in parameters:
        raise UnsupportedModelError(f"{name} cannot give logits at chosen rows (no logits_to_keep); {STOCK_ENGINES}")
    if "position_ids" not in parameters:  # otherwise it would count each step's rows from 0
        raise UnsupportedModelError(f"{name} does not accept token positions (no position_ids); {STOCK_ENGINES}")
    probe = attention.ShapeProbe()
    ids = torch.zeros(1, _PROBE_ROWS, dtype=torch.int64, device=model.device)
    rows = torch.arange(_PROBE_ROWS, device=model.device)
    try:
        with torch.inference_mode():
            model(input_ids=ids, position_ids=rows.unsqueeze(0), use_cache=False, logits_to_keep=rows, plan=probe)
    except (RankGroupError, UnsupportedModelError):
        raise
    except TypeError as error:
        raise UnsupportedModelError(f"{name} cannot be served here: {error}; {STOCK_ENGINES}") from error
    except Exception as error:  # any of transformers' hundreds of forwards may raise anything
        raise UnsupportedModelError(
            f"{name} cannot be served here: a trial forward failed with {error!r}; {STOCK_ENGINES}"
        ) from error
    layer_count = model.config.get_text_config().num_hidden_layers
    if sorted(probe.layers) != list(range(layer_count)):
        raise UnsupportedModelError(
            f"{name} sends {len(probe.layers)} of its {layer_count} layers through transformers' "
            f"attention interface; recurrent or private attention cannot be served here; {STOCK_ENGINES}"
        )
    return [probe.layers[index] for index in range(layer_count)]
