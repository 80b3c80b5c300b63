"""The documents say what is so: their examples run, and what they point to exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sketchmix

ROOT = Path(__file__).parents[1]


def test_readme_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    weights, labels, best, _ = capsys.readouterr().out.splitlines()
    assert weights.endswith("(3, 512)")
    first, second = re.findall(r"\[([\d ]+)\]", labels)
    assert first == second
    assert best == "3"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/dask.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_example_runs() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "local_cluster.py"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("Sketch(200000 rows, 32 of 256 entries kept")
    assert float(run.stdout.split()[-1]) > 0.99


def test_architecture_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = Path(sketchmix.__file__).parent.glob("[a-z]*.py")
    assert [m.name for m in modules if f"`{m.name}`" not in text] == []
