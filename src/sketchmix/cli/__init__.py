"""The command line: what can be asked of the library in a shell."""

import os
import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line, if what it is made of is there."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.exit(f'the command line needs {" and ".join(missing)}: pip install "sketchmix[cli]".')
    # Threads that wait for the next batch would otherwise spin, where reading and writing want to work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from sketchmix.cli.commands import sketchmix  # noqa: PLC0415 - it needs click

    sketchmix()
