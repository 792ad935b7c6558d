"""The tokens that a draft service's callers speak: the target's, if it was told of them."""

from __future__ import annotations

import logging

from draft_service.settings import DraftSettings
from draft_service.translation.spelling import Spelling
from slipstream.hosting.model_service import Spoken
from slipstream.hosting.tokenizer_files import TokenizerFiles, embedded_directory, load_tokenizer_files
from slipstream.stages import TRANSLATING

log = logging.getLogger(__name__)


def spoken_tokens(settings: DraftSettings, own: TokenizerFiles) -> Spoken | None:
    """Return the target's tokens; None if they are the draft's own. UnsupportedModelError if
    --target-tokenizer names no tokenizer."""
    name = settings.target_tokenizer
    if not name:
        return None
    model = str(embedded_directory("target")) if name == "embedded" else name
    files = load_tokenizer_files(model, settings.trust(), weights=False)
    if files.fingerprint == own.fingerprint:
        return None
    spelling = Spelling(files)
    end = spelling.special_ids.get(spelling.named.get("eos_token", ""))
    log.info(
        "%s %d tokens for a target with %d (%s): its hints are translated",
        TRANSLATING,
        own.token_count,
        spelling.size,
        name,
    )
    return Spoken(files, spelling.size, () if end is None else (end,))
