"""Pins of every package, direct or not, in constraints.txt, for all Python versions that are declared.

Asks pip what it would install for the project, its extras and its groups (nothing is downloaded but metadata).
Without an option it writes the file: what has a pin keeps it, what is new gets one, what nobody needs goes. So, to
move a package on, delete its line first. `--check` fails when a version of Python can't be served, or a pin is missing.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")
WANTED = ("pip", ".[all]", "--group", "test", "--group", "check")
HEAD = "# Written by `make constraints`: every package that setup, test and check install, on any declared Python.\n"


def resolve(python: str, pins: dict[str, str]) -> dict[str, str]:
    """Names and versions of all that pip would install on one version of Python, given some pins."""
    with tempfile.TemporaryDirectory() as folder:
        held, report = Path(folder) / "held.txt", Path(folder) / "report.json"
        held.write_text(spell(pins), encoding="utf-8")
        ask = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run",
            "--ignore-installed", "--python-version", python, "--only-binary", ":all:", "--target", folder,
            "--constraint", str(held), "--report", str(report), *WANTED,
        ]  # fmt: skip
        if subprocess.run(ask, cwd=ROOT, check=False).returncode:
            sys.exit(f"Python {python}: no set of packages fits the ranges and pins")
        chosen = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    # A local version, such as +cpu, names a build of the same release.
    found = {normal(one["name"]): one["version"].partition("+")[0] for one in chosen}
    return {name: version for name, version in found.items() if name != "glassformer"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read() -> dict[str, str]:
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.is_file() else []
    parts = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in parts}


def spell(pins: dict[str, str]) -> str:
    return "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))


def main() -> None:
    """Write constraints.txt, or check it."""
    pins = read()
    wanted: dict[str, str] = {}
    for python in PYTHONS:
        found = resolve(python, {**pins, **wanted})
        wanted |= found
        print(f"Python {python}: {len(found)} packages", flush=True)
    if "--check" not in sys.argv:
        FILE.write_text(HEAD + spell(wanted), encoding="utf-8")
    elif missing := sorted(wanted.keys() - pins.keys()):
        sys.exit(f"not pinned in constraints.txt: {', '.join(missing)} (run: make constraints)")


if __name__ == "__main__":
    main()
