"""Writes the new draft as a Hugging Face folder, with its lineage and a model card."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.distilling.checkpoints import Workplace
from slipstream.distilling.dataset import Dataset
from slipstream.distilling.estimate import Estimates, sampled_temperature
from slipstream.distilling.settings import DistilSettings, as_yaml
from slipstream.distilling.student import Student
from slipstream.distilling.table import table
from slipstream.engine.checkpoint import CONFIG, INDEX, weight_files
from slipstream.engine.pretrained.loading import heard
from slipstream.hub.files import CODE_FILES, SMALL_FILES
from slipstream.version import VERSION

LINEAGE = "lineage.json"
CARD = "README.md"
SETTINGS = "distill.yaml"


@dataclass(frozen=True, slots=True)
class Lineage:
    """Everything that a draft was made from, and what it brought."""

    settings: DistilSettings
    data: Dataset
    base_digest: str
    before: Estimates
    after: Estimates
    began: float
    training_seconds: float

    def described(self, new_digest: str, base_lineage: Any) -> dict[str, Any]:
        """Return it as JSON values. The base draft may have a lineage of its own."""
        held = sum(len(record.positions) for record in self.data.held_out)
        return {
            "format_version": 1,
            "slipstream_version": VERSION,
            "target": asdict(self.data.facts) | {"given_as": self.settings.target},
            "base_draft": {
                "name": self.settings.draft,
                "weights_sha256": self.base_digest,
                "lineage": base_lineage,
            },
            "draft": {"weights_sha256": new_digest},
            "data": {
                "folder": self.settings.data,
                "asked": [*self.data.asked],
                "shards": [asdict(shard) for shard in self.data.shards],
                "training_sequence_count": len(self.data.training),
                "held_out_sequence_count": len(self.data.held_out),
                "held_out_row_count": held,
            },
            "settings": self.settings.model_dump(exclude={"config"}),
            "seed": self.settings.seed,
            "acceptance": {
                "kind": "teacher-forced estimate on held-out prompts",
                "temperature": self.settings.temperature,
                "sampled_temperature": sampled_temperature(self.settings.temperature),
                "before": _values(self.before),
                "after": _values(self.after),
            },
            "began": _utc(self.began),
            "ended": _utc(time.time()),
            "training_seconds": round(self.training_seconds, 1),
        }


def weights_digest(directory: Path) -> str:
    """Return a sha256 over all bytes of a folder's weights."""
    digest = hashlib.sha256()
    for path in sorted(weight_files(directory, str(directory))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def write_folder(student: Student, base: Path, workplace: Workplace, lineage: Lineage) -> None:
    """Write the trained draft and the small files of its base, and give them the folder's name once
    they are whole. DistilError if there is no room."""
    with workplace.writing() as folder:
        with heard(lineage.settings.draft):  # in place of its progress bar
            student.model.to(student.stored_type).save_pretrained(folder)
        _copy_small_files(base, folder)
        said = lineage.described(weights_digest(folder), _base_lineage(base))
        (folder / LINEAGE).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        (folder / SETTINGS).write_text(as_yaml(lineage.settings), encoding="utf-8")
        (folder / CARD).write_text(_card(lineage, said), encoding="utf-8")


def _copy_small_files(base: Path, folder: Path) -> None:
    """Copy the tokenizer, the chat template and the generation config, as the base has them."""
    for path in {path for pattern in (*SMALL_FILES, *CODE_FILES) for path in base.glob(pattern)}:
        if path.name not in (CONFIG, INDEX, LINEAGE):
            shutil.copyfile(path, folder / path.name)


def _base_lineage(base: Path) -> Any:
    try:
        return json.loads((base / LINEAGE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _card(lineage: Lineage, said: Mapping[str, Any]) -> str:
    settings, target = lineage.settings, lineage.data.facts
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, draft-model, distillation]
---

# A draft for {target.name}

`slipstream distill` trained this draft on the answers of `{target.name}`. It guesses that model's next tokens in
speculative decoding; it is not meant to be used alone.

- Target: `{target.name}`, weights `{target.weights_fingerprint[:16]}`, as the data names it
- Base draft: `{settings.draft}`, weights `{lineage.base_digest[:16]}`
- Data: {len(lineage.data.training):,} sequences, {len(lineage.data.shards)} shards
- Settings: `{SETTINGS}`; everything else: `{LINEAGE}`
- Trained: {said["ended"]}, {lineage.training_seconds:.0f} s on {settings.device}

```text
{table(lineage.before, lineage.after, lineage.data, settings.temperature)}
```
"""


def _values(estimates: Estimates) -> dict[str, Any]:
    return {
        "greedy": estimates.greedy._asdict(),
        "sampled": estimates.sampled._asdict(),
        "sampled_error_bound": estimates.error_bound,
    }


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
