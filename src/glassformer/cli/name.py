"""What a user types to call us: in hints of what to do next."""

import os
import shutil
import sys
from pathlib import Path


def command() -> str:
    """`glassformer` where the shell finds this installation, else the way to it from the current folder."""
    script = Path(sys.executable).with_name("glassformer")
    if not script.exists():
        return f"{Path(sys.executable).name} -m glassformer"
    found = shutil.which("glassformer")
    return "glassformer" if found and Path(found).samefile(script) else os.path.relpath(script)
