"""Generate the Python stubs of protos/slipstream beside their packages (or, with --check, say
whether they are up to date).

The stubs of google/rpc come with googleapis-common-protos.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"


def generate(out: Path) -> None:
    """Write message and service stubs with their type stubs into ``out``; SystemExit if protoc
    refuses."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / "slipstream").rglob("*.proto"))
    includes = [f"-I{PROTOS}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = [
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
    ]
    if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
        raise SystemExit("protoc failed; its message is above")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the committed stubs are stale")
    options = parser.parse_args()
    if not options.check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        generate(fresh)
        names = sorted(str(path.relative_to(fresh)) for path in fresh.rglob("*.py*"))
        stale = [n for n in names if not (ROOT / n).exists() or not filecmp.cmp(fresh / n, ROOT / n, shallow=False)]
    if stale:
        sys.exit(f"stale stubs: {', '.join(stale)}\nrun `make protos` and commit the result")


if __name__ == "__main__":
    main()
