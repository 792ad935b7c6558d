"""The heavy target says what the embedded one says."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.heavy_target import Size, build
from slipstream.hosting.tokenizer_files import embedded_directory


def test_a_wider_and_deeper_target_has_the_same_logits(tmp_path: Path) -> None:
    count = build(Size(hidden=512, feed_forward=1280, layers=10), tmp_path)
    small = AutoModelForCausalLM.from_pretrained(embedded_directory("target"), dtype=torch.float32).eval()
    heavy = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert count > 1.9 * sum(weight.numel() for weight in small.parameters())
    ids = torch.randint(3, 4000, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, got = small(ids).logits, heavy(ids).logits
    # The norms' weights were rounded to bfloat16 after scaling.
    assert (got - expected).abs().max() < 0.02 * expected.abs().max()
    assert (got.argmax(-1) == expected.argmax(-1)).float().mean() > 0.98
    assert (tmp_path / "tokenizer.json").exists() and (tmp_path / "chat_template.jinja").exists()
