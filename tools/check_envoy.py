"""Read an Envoy configuration as Envoy does: every key by the messages of its API. Needs PyYAML and
xds-protos alone.

`tools/check_deploy.py` runs this with the tools of its own environment, because xds-protos
overwrites a package of OpenTelemetry's. Prints what is wrong, and exits with 1.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format


def check(path: Path) -> None:
    """Raise json_format.ParseError for a key that Envoy does not know, or a value that cannot
    be."""
    content = yaml.safe_load(path.read_text())
    for package in sorted(set(re.findall(r"type\.googleapis\.com/([\w.]+)\.\w+", json.dumps(content)))):
        _load(package)
    json_format.ParseDict(content, _load("envoy.config.bootstrap.v3").Bootstrap())


def _load(package: str) -> Any:
    """Load all modules of a package, so that their messages are known, and return the last one."""
    folder = importlib.import_module(package)
    names = [each.name for each in pkgutil.iter_modules(folder.__path__) if each.name.endswith("_pb2")]
    modules = [importlib.import_module(f"{package}.{name}") for name in names]
    return modules[-1]


if __name__ == "__main__":
    try:
        check(Path(sys.argv[1]))
    except (json_format.ParseError, ImportError) as error:
        sys.exit(" ".join(str(error).split()))
