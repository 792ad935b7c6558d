"""Keys of a generation_config.json that are not followed, by whether they can change a text."""

from __future__ import annotations

from typing import Any

UNFOLLOWED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "guidance_scale": (1,),
    "diversity_penalty": (0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "token_healing": (False,),
    "watermarking_config": (),
    "constraints": (),
    "force_words_ids": (),
    "stop_strings": (),
    "max_time": (),
    "remove_invalid_values": (False,),
    "num_return_sequences": (1,),
}
"""Keys that can change a text, each with the values that change nothing."""

SAMPLED_ONLY = {"epsilon_cutoff", "eta_cutoff", "top_h"}
"""Keys that transformers reads only when it samples."""

WITHOUT_EFFECT = {
    # of beams alone
    "early_stopping",
    "length_penalty",
    # how it is computed, and what is handed back
    "use_cache",
    "use_mtp",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "prefill_chunk_size",
    "low_memory",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    "return_legacy_cache",
    "renormalize_logits",
    # tokens that a decoder's text does not come from
    "bos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    # of speculation, which changes no text
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "assistant_ensemble_weight",
    "speculation_type",
    # of the file itself
    "_from_model_config",
    "_commit_hash",
    "transformers_version",
    "trust_remote_code",
}

NEUTRAL_IN_CONFIG: dict[str, Any] = {
    "max_length": 20,
    "min_length": 0,
    "do_sample": False,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    "temperature": 1,
    "top_k": 50,
    "top_p": 1,
    "typical_p": 1,
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "num_return_sequences": 1,
    "remove_invalid_values": False,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}
"""Defaults of how to generate that older versions of transformers wrote into every config.json.
Nothing reads such keys there, and these values ask for nothing."""
