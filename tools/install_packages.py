"""Install this checkout with some of its extras into the environment of the Python that runs this.

    python tools/install_packages.py '.[dev]'          uv installs
    python tools/install_packages.py --pip '.[dev]'    pip installs

uv takes a third of pip's time. It is installed first where it is missing, and follows pip's
configuration: indexes, folders of wheels, certificates, a proxy. Where uv cannot install, pip does.
Versions are those of constraints.txt.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
# editable_mode=compat: a plain path to this checkout. Type checkers cannot read the import hook of
# the other modes.
_ARGUMENTS = ["--constraint", str(CONSTRAINTS), "--config-settings", "editable_mode=compat", "--editable"]
_PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]

_SAME_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "no-index": "UV_NO_INDEX",
}
"""Environment variables of uv that take a value of pip's as it is, by pip's option."""

_LISTS = {
    "extra-index-url": ("UV_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "find-links": ("UV_FIND_LINKS", ","),
}
"""Options with several values, and the separator that uv expects between two of them."""

_SECTIONS = ("global", "install", ":env:")
"""Sections of pip's configuration that `pip install` reads; a later one wins."""


def pip_options(listed: str) -> dict[str, str]:
    """Return the options that `pip install` follows, by name without section, from the output of
    `pip config list`."""
    sections: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        key, separator, value = line.partition("=")
        section, dot, name = key.rpartition(".")
        if separator and dot and section in sections:
            sections[section][name] = str(ast.literal_eval(value))
    return {name: value for section in _SECTIONS for name, value in sections[section].items()}


def uv_environment(options: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make uv install from the sources in pip's ``options``. Like
    pip, uv then takes the newest version of all indexes instead of the first index's."""
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for option, value in options.items():
        if option in _SAME_NAMES:
            variables[_SAME_NAMES[option]] = value
        elif option in _LISTS:
            name, separator = _LISTS[option]
            variables[name] = separator.join(value.split())
        elif option in ("timeout", "default-timeout"):
            variables["UV_HTTP_TIMEOUT"] = str(max(1, round(float(value))))
    return variables


def install_with_uv(requirement: str) -> bool:
    """Install by uv. False if uv is not to be had here or cannot do it."""
    if find_spec("uv") is None and subprocess.call([*_PIP, "--quiet", "--constraint", str(CONSTRAINTS), "uv"]):
        return False
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    environment = {**uv_environment(pip_options(listed)), **os.environ}
    return subprocess.call([*command, *_ARGUMENTS, requirement], env=environment) == 0


def main() -> None:
    """Install what the command line names; exit with pip's status if nothing else can."""
    parser = argparse.ArgumentParser(description="Install this checkout with some of its extras.")
    parser.add_argument("requirement", help="the checkout and its extras, like '.[dev]'")
    parser.add_argument("--pip", action="store_true", help="let pip install instead of uv")
    chosen = parser.parse_args()
    if not chosen.pip:
        if install_with_uv(chosen.requirement):
            return
        print("uv could not install it: pip does", flush=True)
    sys.exit(subprocess.call([*_PIP, *_ARGUMENTS, chosen.requirement]))


if __name__ == "__main__":
    main()
