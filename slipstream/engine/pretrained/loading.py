"""Loads a checkpoint with transformers' own classes, whole or not at all.

transformers warns where a tensor is missing and serves random numbers in its place. Here that
is an UnsupportedModelError in one line, like all else that would make another model of a checkpoint
than it says.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from slipstream import stages
from slipstream.engine.checkpoint import (
    NO_TRUST,
    PICKLE,
    Trust,
    check_config,
    check_weights,
    directory_of,
    one_line,
    refuse_quantised,
    some,
)
from slipstream.engine.config_numbers import is_positive
from slipstream.engine.errors import STOCK_ENGINES, UnsupportedModelError
from slipstream.engine.pretrained import rotary
from slipstream.engine.pretrained.config_keys import told_of_config
from slipstream.engine.pretrained.quantisation import Quantisation, is_packed
from slipstream.engine.pretrained.vector_math import settle_vector_math

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_SERVED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}

_CONVERSION = re.compile(r"^(\S+)\s*\| CONVERSION", re.MULTILINE)
_AGAIN = "copy, download or export it again"


def load_pretrained(
    name: str,
    *,
    device: str,
    dtype: str,
    attention: str | None,
    experts: str | None = None,
    trust: Trust = NO_TRUST,
    quantisation: Quantisation | None = None,
) -> Any:
    """A ``PreTrainedModel`` on its device with an implementation of ``attention`` (None: what
    transformers prefers) and, if not transformers' own, of ``experts``, ready to serve. Its weights
    are quantised only if ``quantisation`` says how. UnsupportedModelError says what is missing or
    wrong."""
    settle_vector_math()
    directory = directory_of(name, weights=True, trust=trust)
    config = read_config(directory, name, trust, quantised=quantisation is not None)
    use_safetensors = check_weights(directory, name, trust, quantised=quantisation is not None)
    with heard(name) as said, _told_tensors():
        try:
            place = torch.empty(0, device=device).device  # before gigabytes are read
            model, report = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=DTYPES[dtype],
                attn_implementation=attention,
                experts_implementation=experts,
                use_safetensors=use_safetensors,
                trust_remote_code=trust.code,
                ignore_mismatched_sizes=True,  # they are in the report, by name
                output_loading_info=True,
                **(quantisation.loading_arguments(place) if quantisation is not None else {}),
            )
            refuse_partial(report, model, name)
            if quantisation is None:
                model = model.to(place)
            model = model.eval().requires_grad_(False)
        except UnsupportedModelError:
            raise
        except Exception as error:  # any of transformers' hundreds of models, and of its libraries
            raise UnsupportedModelError(
                _why(error, said, config, attention, name, f"on {device} as {dtype}")
            ) from error
    refuse_no_numbers(model, name)
    warn_of_unread(directory, model, name)
    return model


def warn_of_unread(directory: Path, model: Any, name: str) -> None:
    """Log the keys of a config.json that the class of ``model`` does not read."""
    if type(model.config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        for told in told_of_config(directory, model):
            log.warning("config.json of %s %s", name, told)


def read_config(directory: Path, name: str, trust: Trust = NO_TRUST, *, quantised: bool = False) -> Any:
    """The ``PreTrainedConfig`` of a model that can be served, as far as that tells: with plain
    weights, or ``quantised`` ones. UnsupportedModelError with the reason."""
    check_config(directory, name, quantised=quantised)
    with heard(name):
        values: dict[str, Any] = {}
        try:
            values, _ = PreTrainedConfig.get_config_dict(directory)
            config = AutoConfig.from_pretrained(directory, trust_remote_code=trust.code)
        except Exception as error:  # any of transformers' hundreds of configurations
            raise UnsupportedModelError(_why_no_config(error, values, name)) from error
    _refuse_foreign(config, name, trust)
    if not quantised:
        for each in (config, config.get_text_config()):
            refuse_quantised(getattr(each, "quantization_config", None), name)
    _refuse_odd_numbers(config.get_text_config(), name)
    return config


def _why_no_config(error: Exception, values: dict[str, Any], name: str) -> str:
    kind = values.get("model_type")
    if kind in CONFIG_MAPPING:
        return f"config.json of {name} does not fit its model type {kind!r}: {one_line(error)}"
    own = ""
    if "auto_map" in values:
        own = " and which brings code of its own (auto_map), which is not run without --trust-remote-code"
    return (
        f"{name} is of model type {kind!r}, which transformers {transformers.__version__} does not know{own}; only its own "
        "decoder-only language models can be served"
    )


@contextmanager
def heard(name: str) -> Iterator[list[str]]:
    """Collect transformers' messages in place of its own log and progress bars. They are logged at
    the end, one line each, unless there is an error to tell instead."""
    said: list[str] = []
    logger = logging.getLogger("transformers")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Ear(said)], False
    transformers.utils.logging.disable_progress_bar()
    try:
        yield said
        for text in said:
            if "LOAD REPORT" not in text:  # which is told in our own words
                log.warning("%s: %s", name, " ".join(text.split()))
    finally:
        transformers.utils.logging.enable_progress_bar()
        logger.handlers, logger.propagate = before


@contextmanager
def _told_tensors() -> Iterator[None]:
    """Inside, transformers' progress bar over the tensors of a model is a line now and then."""
    progress = stages.PartProgress(stages.LOADING, log.info, "tensors", quiet_seconds=stages.QUIET_SECONDS)

    def bar(factory: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        return _counted(arguments[0], progress) if arguments else factory(*arguments, **options)

    before = transformers.utils.logging.set_tqdm_hook(bar)
    try:
        yield
    finally:
        transformers.utils.logging.set_tqdm_hook(before)


def _counted(tensors: Collection[Any], progress: stages.PartProgress) -> Iterator[Any]:
    for count, tensor in enumerate(tensors, 1):
        yield tensor
        progress.reach(count, len(tensors))


class _Ear(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


def architecture_of(config: Any) -> str:
    """The class that a checkpoint was saved from."""
    return str((getattr(config, "architectures", None) or [type(config).__name__])[0])


def _refuse_foreign(config: Any, name: str, trust: Trust) -> None:
    architecture = architecture_of(config)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{architecture} is an encoder-decoder; only decoder-only models can be served")
    own_code = trust.code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or ())
    if not own_code and (type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or not _generates(config)):
        if architecture.endswith("ForConditionalGeneration"):
            raise UnsupportedModelError(
                f"{name} is a {architecture}, of which transformers has no class for text alone; {STOCK_ENGINES}"
            )
        raise UnsupportedModelError(
            f"{name} is a {architecture}, which does not generate text; only decoder-only language models can be served"
        )
    text = config.get_text_config()
    foreign = set(getattr(text, "layer_types", None) or ()) - _SERVED_LAYERS
    if foreign:
        raise UnsupportedModelError(
            f"{architecture} has layers of {', '.join(sorted(foreign))}; only full, sliding-window and chunked attention can "
            f"be served here; {STOCK_ENGINES}"
        )


def _refuse_odd_numbers(config: Any, name: str) -> None:
    """transformers would compute with them, and every logit would be NaN or meaningless."""
    epsilon = vars(config).get("rms_norm_eps")  # as for rotary positions
    odd = rotary.odd_position(config)
    if epsilon is not None and not is_positive(epsilon):
        odd = f"rms_norm_eps {epsilon!r}"
    if odd is not None:
        raise UnsupportedModelError(f"config.json of {name} cannot be computed with: it has {odd}; {_AGAIN}")


def _generates(config: Any) -> bool:
    """By its name: of a checkpoint that was saved from another class, transformers would make up
    the output matrix. Llama 4's checkpoints hold a text model beside one of images."""
    names = getattr(config, "architectures", None) or ["ForCausalLM"]
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return any(
        name in known or name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")) for name in names
    )


def refuse_partial(report: dict[str, Any], model: Any, name: str) -> None:
    """Raise UnsupportedModelError unless a checkpoint held all tensors of ``model``. ``report`` is
    transformers' loading info."""
    kind = type(model).__name__
    missing, unused = report["missing_keys"], report["unexpected_keys"]
    if missing:
        raise UnsupportedModelError(
            f"{name} lacks {len(missing)} of {kind}'s tensors: {some(missing)}; it is incomplete or belongs to another "
            f"config.json: {_AGAIN}"
        )
    other = [f"{key} is {list(held)} instead of {list(wanted)}" for key, held, wanted in report["mismatched_keys"]]
    if other:
        raise UnsupportedModelError(
            f"{name} has tensors of other shapes than its config.json says: {some(other)}; one of the two belongs to "
            f"another model: {_AGAIN}"
        )
    if unused:
        log.warning(
            "%s holds %d tensors that its config.json has no place for, and is served without them: %s",
            name,
            len(unused),
            some(unused),
        )


def refuse_no_numbers(model: Any, name: str) -> None:
    """Raise UnsupportedModelError if a weight is NaN or infinite. One pass over each tensor, at the
    memory's speed and without a copy."""
    faulty: dict[int, str] = {}
    weights = model.state_dict()
    progress = stages.ByteProgress(stages.CHECKING, log.info, quiet_seconds=stages.QUIET_SECONDS)
    read, total = 0, sum(weight.nbytes for weight in weights.values())
    for key, weight in weights.items():
        read += weight.nbytes
        progress.reach(read, total)
        if weight.is_floating_point() and weight.numel() and not is_packed(weight):
            lowest, highest = torch.aminmax(weight)
            if not (torch.isfinite(lowest) and torch.isfinite(highest)):
                faulty.setdefault(weight.data_ptr(), key)  # tied weights have two names
    if faulty:
        raise UnsupportedModelError(
            f"{name} has weights that are NaN or infinite, in {some(faulty.values())}; it was damaged where it was "
            f"trained, converted or copied: {_AGAIN}"
        )


def _why(error: Exception, said: list[str], config: Any, attention: str | None, name: str, where: str) -> str:
    architecture = architecture_of(config)
    if isinstance(error, pickle.UnpicklingError):  # torch's own words advise to load it by all means
        return (
            f"{PICKLE} of {name} is damaged or holds more than tensors, which is never loaded: {_AGAIN}, as safetensors"
        )
    if error.args == (attention,):  # Falcon, GPT-J and GPT-Neo look their class up by this name
        return (
            f"{architecture} has attention classes of its own; only attention through transformers' attention "
            f"interface can be served here; {STOCK_ENGINES}"
        )
    unmade = {key for text in said for key in _CONVERSION.findall(text)}
    if unmade:  # it puts the tensors of a mixture's experts together
        return f"{name} lacks tensors that {some(unmade)} of {architecture} would be made of: {_AGAIN}"
    return f"cannot load {name} {where}: {one_line(error)}"
