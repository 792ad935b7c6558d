"""Records that tell compiled code about a step, a layer and a run. Places are addresses."""

from __future__ import annotations

import numpy as np

_SHAPE = """
    hidden_size head_count kv_head_count head_size feed_forward vocabulary_columns layer_count bf16
""".split()
"""Fields of the model. ``bf16`` says that its numbers are bfloat16."""

_WEIGHTS = (
    """embedding embedding_width embedding_is_float16 embedding_blocks final_norm head layers frequencies""".split()
)
"""``embedding`` is rows of numbers of ``embedding_width`` bytes (2 is bfloat16, unless it says
float16), or 0. Then it is quantised, and ``embedding_blocks`` is its `MATRIX`."""

_ROWS = """origin row_count wanted_count ids positions slots""".split()
"""Fields of the step: each row's token, its position and the slot of its key, all int64; and how
many rows' logits are wanted. ``origin`` is the place of a 0."""

_PARTS = """
    part_count part_rows part_counts part_tables
    wanted_part_count wanted_part_rows wanted_part_counts wanted_part_tables wanted_part_places
    longest
""".split()
"""Fields of attention. A part is a few rows of one sequence that see their keys together: its first
row, how many, and their block table's place. The same of the rows whose logits are wanted, and
which of these the first one is. ``longest`` is the keys of the longest sequence, rounded up to
whole blocks."""

_MEMORY = """residual wanted_residual inputs projected queries gated rotations logits scratch scratch_bytes""".split()
"""Memory that is computed in; each thread has ``scratch_bytes`` of its own. ``wanted_residual`` is
of the rows whose logits are wanted, where not all are."""

_THREADS = """team thread_count""".split()
"""Threads that compute."""

_TILES = """products values scores in_matrices most_queries""".split()
"""Places of tiles (`tiles`): of matrices, and of attention's values and keys; whether they are of
the matrix unit, and how many queries one of these two has at most."""

_NEXT = """run follow""".split()
"""Places of a run's `RUN`, 0 where a step is alone, and of the function that is called after each
of its steps (`following`)."""

_FACTORS = """epsilon rotation_scale attention_scale""".split()

STEP = np.dtype(
    [(name, np.int64) for name in (*_SHAPE, *_WEIGHTS, *_ROWS, *_PARTS, *_MEMORY, *_THREADS, *_TILES, *_NEXT)]
    + [(name, np.float64) for name in _FACTORS]
)

RUN = np.dtype(
    [
        (name, np.int64)
        for name in """
            count done row_count following vocabulary_size
            numbers ends end_places
            positions ended maxima largest tokens scores logprobs logprob_count stop_flag logits_step
        """.split()
    ]
    + [("slack", np.float64)]
)
"""Fields of a run, and where it writes: ``count`` steps at most, of which so many are ``done``;
each has the rows of the STEP ``following`` but for the first, which may have more of each sequence.
Then each row's rule, by which a temperature of 0 takes the likeliest token; row i's ``ends``,
rising, are those from ``end_places[i]`` to before ``end_places[i + 1]``. ``positions`` of what is
chosen next, and whether a row has ``ended``, are int64; ``tokens`` and ``scores`` are
``[count, row_count, 2]``, the best two. ``logprob_count`` is 1 if ``logprobs`` has room for one of
each row, and else 0. The run ends once there is something else than 0 at
``stop_flag``. A step's logits lie ``logits_step`` bytes after those of the step before: 0 if they
are not kept."""

MATRIX = np.dtype([(name, np.int64) for name in "end place tile column_bytes steps row_bytes is_quantised".split()])
"""A part of a matrix: up to the tile before ``end``, by the ``tile`` at that address; ``place`` is
where the matrix's first tile would be. Bytes of sixteen outputs, the steps of a sum, and the bytes
of a row of inputs."""

MATRIX_PARTS = 3
"""Parts of a matrix at most: queries, keys and values may be of different types."""

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in """
            attention_norm projection projection_bias query_norm key_norm output output_bias
            feed_norm gate_up gate_up_bias down down_bias keys values window kept_input
        """.split()
    ]
)
"""``projection``, ``output``, ``gate_up`` and ``down`` are places of `MATRIX_PARTS` of `MATRIX`, as
is a step's ``head``. 0 for what a layer has not; ``window`` is how many keys a query sees at most,
0 for all. ``kept_input`` is where the layer's input is kept for heads, of all rows."""
