"""What the nursery's process has ready: the large imports of a service, and the code that chooses
tokens."""

# ruff: noqa: E402, F401 - imported to be there, with the collector at rest
from __future__ import annotations

from slipstream.garbage import pause_collection

pause_collection()

import numpy as np
import transformers.models.auto.tokenization_auto
import transformers.models.llama.modeling_llama

import draft_service.__main__
import orchestrator.__main__
import slipstream.engine.compiled_checkpoint
import slipstream.engine.compiled_from_transformers
import slipstream.engine.torch.planned_backend
import slipstream.engine.torch.transformers_model
import verifier_service.__main__
from slipstream.sampling.choose import warm

warm(np.float32, np.int16)
