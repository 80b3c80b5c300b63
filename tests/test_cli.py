"""The command line says what the library finds, and ends as a shell expects, whatever happens."""

import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import zarr
from click.testing import CliRunner, Result
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import linear_sum_assignment

import sketchmix as sm
from sketchmix import demo, sketch
from sketchmix.cli import commands, facts, labels, manners, options, show
from sketchmix.families import COVARIANCE_TYPES
from sketchmix.selection import CRITERIA

Array = NDArray[Any]

SCRIPT = Path(sys.executable).with_name("sketchmix")
N_ROWS, N_FEATURES, SIZE = 900, 32, 8


def run(*arguments: object, code: int = 0) -> Result:
    """What a command says in this process."""
    result = CliRunner().invoke(commands.sketchmix, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def asked(*arguments: object, code: int = 0) -> dict[str, Any]:
    """What a command says to a machine."""
    result = run(*arguments, "--json", code=code)
    assert not result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def shell(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """What the installed command says in a process of its own."""
    done = subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def clusters(n_rows: int = N_ROWS) -> Array:
    """Rows of three clusters far apart."""
    rng = np.random.default_rng(0)
    centers = 3 * rng.normal(size=(3, N_FEATURES))
    X = centers[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, N_FEATURES))
    return X.astype(np.float32)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a sketch, but for the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, a sketch of them, and a model of each kind."""
    folder = tmp_path_factory.mktemp("home")
    np.save(folder / "X.npy", clusters())
    with h5py.File(folder / "two.h5", "w") as file:
        file["a"], file["b"] = np.eye(3), np.eye(4)
    np.savetxt(folder / "rows.csv", clusters()[:20], delimiter=",")
    run("sketch", folder / "X.npy", folder / "sketch", "--sketch-size", SIZE, "--seed", 0)
    for model in commands.MODELS:
        output = folder / f"{model}.safetensors"
        run("fit", folder / "sketch", "-k", 3, "--model", model, "--seed", 0, "-o", output)
    return folder


@pytest.fixture
def at_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as where the command runs; what it writes goes elsewhere."""
    monkeypatch.chdir(home)
    return tmp_path


# -- starting ---------------------------------------------------------------------------------------------


def test_help_and_version_do_not_wait_for_numpy() -> None:
    program = (
        "import sys; from sketchmix.cli import main; sys.argv = ['sketchmix', sys.argv[1]]\n"
        "try: main()\n"
        "finally: print(sorted({'numpy', 'scipy', 'sklearn', 'rich'} & set(sys.modules)))"
    )
    for flag, said in (("--help", "Usage:"), ("--version", "version 0.1.0")):
        done = subprocess.run([sys.executable, "-c", program, flag], capture_output=True, text=True, check=True)
        assert said in done.stdout
        assert done.stdout.endswith("\n[]\n")


def test_the_installed_command_says_its_name() -> None:
    assert shell("--help").stdout.startswith("Usage: sketchmix [OPTIONS] COMMAND")
    assert shell("--version").stdout == "sketchmix, version 0.1.0\n"


@pytest.mark.parametrize("command", sorted(commands.sketchmix.commands))
def test_every_command_has_help_and_can_be_read_by_machines(command: str) -> None:
    said = run(command, "--help").stdout
    assert "--json" in said
    assert "--quiet" in said


@pytest.mark.parametrize(("package", "names"), [("click", "click"), ("rich", "rich")])
def test_a_missing_package_is_named_with_its_cure(package: str, names: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; from sketchmix.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f'the command line needs {names}: pip install "sketchmix[cli]".\n'


def test_public_names_are_found_when_they_are_asked_for() -> None:
    assert set(sm.__all__) <= set(dir(sm))
    with pytest.raises(AttributeError, match="module 'sketchmix' has no attribute 'GaussianMixtures'"):
        sm.GaussianMixtures  # type: ignore[attr-defined]  # noqa: B018
    program = "import sketchmix; print(sketchmix.sources.array.__name__)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"array\n"


def test_choices_are_those_of_the_library() -> None:
    assert commands.TRANSFORMS == sketch.TRANSFORMS
    assert commands.CRITERIA == CRITERIA
    assert set(options.COVARIANCES) == set(COVARIANCE_TYPES)


def test_commands_of_the_readme_are_understood() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    lines = re.findall(r"^sketchmix .*", readme, re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        _, name, *arguments = shlex.split(line, comments=True)
        commands.sketchmix.commands[name].make_context(name, arguments)


# -- the whole way ----------------------------------------------------------------------------------------


def accuracy(found: Array, truth: Array) -> float:
    counts = np.array([[np.sum((truth == digit) & (found == k)) for k in range(3)] for digit in np.unique(truth)])
    return float(counts[linear_sum_assignment(-counts)].sum() / len(truth))


def test_digits_from_files_to_labels(digits_039: tuple[Array, Array], tmp_path: Path) -> None:
    X, truth = digits_039
    np.save(tmp_path / "X.npy", X)
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    (tmp_path / "parts").mkdir()
    for number, rows in enumerate((pixels[:10_000], pixels[10_000:])):
        pa.parquet.write_table(pa.table({"pixels": rows}), tmp_path / "parts" / f"{number}.parquet")
    shell("sketch", tmp_path / "X.npy", tmp_path / "a", "--sketch-size", 30, "--seed", 0)
    run("sketch", tmp_path / "parts", tmp_path / "b", "--sketch-size", 30, "--seed", 0)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert "18,003" in shell("info", tmp_path / "a").stdout

    model = tmp_path / "model.safetensors"
    shell("fit", tmp_path / "a", "-k", 3, "--n-init", 3, "--seed", 0, "-o", model)
    shell("predict", model, tmp_path / "parts", "-o", tmp_path / "labels.npy", "--columns", "pixels")
    found = np.load(tmp_path / "labels.npy")
    expected = sm.GaussianMixture(3, n_init=3, random_state=0).fit(sm.Sketch.open(tmp_path / "a")).predict(X)
    assert_array_equal(found, expected)
    assert accuracy(found, truth) > 0.85


def write_every_kind(folder: Path, X: Array) -> dict[str, list[str]]:
    """The same rows in every kind of file, with the options that it takes to read them."""
    np.save(folder / "X.npy", X)
    X.tofile(folder / "X.bin")
    table = pa.table({"name": ["row"] * len(X)} | {f"f{i}": column for i, column in enumerate(X.T)})
    pa.parquet.write_table(table, folder / "X.parquet")
    pa.csv.write_csv(table, folder / "X.csv")
    with h5py.File(folder / "X.h5", "w") as file:
        file["rows"], file["others"] = X, X[:5]
    zarr.create_group(folder / "X.zarr").create_array("rows", data=X)
    names = ",".join(f"f{i}" for i in range(X.shape[1]))
    return {
        "X.npy": [],
        "X.bin": ["--n-features", str(X.shape[1]), "--raw-dtype", "float32"],
        "X.parquet": ["--columns", names],
        "X.csv": [
            "--columns",
            names.replace(",f7,", ",f7\n").split("\n")[0],
            "--columns",
            names[names.index("f8") :],
        ],
        "X.h5": ["--dataset", "rows"],
        "X.zarr": ["--dataset", "rows"],
    }


def test_every_kind_of_file_gives_the_same_sketch_and_labels(home: Path, tmp_path: Path) -> None:
    expected = contents(home / "sketch")
    labels_of_rows = sm.load(home / "gaussian.safetensors").predict(clusters())
    for name, how in write_every_kind(tmp_path, clusters()).items():
        out = tmp_path / f"sketch of {name}"
        # CSV is read as float64, for which the dense rows are kept as such.
        said = asked("sketch", tmp_path / name, out, "--sketch-size", SIZE, "--seed", 0, *how)
        assert said["rows"] == N_ROWS
        for file in ("000000.indices.npy",) if name == "X.csv" else expected:
            assert contents(out)[file] == expected[file], name
        output = tmp_path / "labels.npy"
        run("predict", home / "gaussian.safetensors", tmp_path / name, "-o", output, *how)
        assert_array_equal(np.load(output), labels_of_rows)


def test_a_csv_without_names_loses_no_row(at_home: Path) -> None:
    out, options = at_home / "out", ["--sketch-size", SIZE, "--seed", 0]
    assert asked("sketch", "rows.csv", out, "--no-header", *options)["rows"] == 20
    expected = np.loadtxt("rows.csv", delimiter=",")
    sketched = sm.Sketcher(SIZE, random_state=0).fit_transform(expected)
    np.testing.assert_array_equal(sm.Sketch.open(out).values, sketched.values)


@pytest.mark.parametrize("part", [("--rows", "0:300"), ("--first-row", 300)])
def test_parts_need_a_seed(part: tuple[str, Any], at_home: Path, tmp_path: Path) -> None:
    refused = run("sketch", "X.npy", tmp_path / "part", *part, code=2)
    assert "parts join only if all have the same --seed; give one, as in --seed 0." in refused.stderr
    assert not (tmp_path / "part").exists()


def test_parts_are_joined(at_home: Path) -> None:
    for rows in ("0:300", "300:900"):
        said = asked("sketch", "X.npy", at_home / rows, "--sketch-size", SIZE, "--seed", 0, "--rows", rows)
        assert said["first_row"] == int(rows.split(":")[0])
    np.save(at_home / "rest.npy", clusters()[300:])
    run("sketch", at_home / "rest.npy", at_home / "rest", "--sketch-size", SIZE, "--seed", 0, "--first-row", 300)
    assert contents(at_home / "rest") == contents(at_home / "300:900")
    model = at_home / "model.safetensors"
    said = asked("fit", at_home / "300:900", at_home / "0:300", "-k", 3, "--seed", 0, "-o", model)
    assert said["rows"] == N_ROWS
    assert model.read_bytes() == Path("gaussian.safetensors").read_bytes()


# -- what is said -----------------------------------------------------------------------------------------


def test_sketch_says_how_fast_it_was(at_home: Path) -> None:
    said = asked("sketch", "X.npy", at_home / "out", "--sketch-size", "0.25", "--rows-per-shard", 400)
    on_disk = sum(len(data) for name, data in contents(at_home / "out").items() if name.endswith(".npy"))
    assert said["bytes"] == on_disk
    assert (said["rows"], said["kept_entries"], said["shards"], said["complete"]) == (N_ROWS, 8, 3, True)
    assert said["rows_per_second"] == pytest.approx(N_ROWS / said["seconds"], rel=1e-3)
    assert said["seed"] is None
    assert said["warnings"] == []


def test_info_of_a_sketch(at_home: Path) -> None:
    said = asked("info", "sketch", "-k", 3)
    assert (
        said.items()
        >= {
            "rows": N_ROWS,
            "features": N_FEATURES,
            "kept_entries": SIZE,
            "share": 0.25,
            "transform": "hadamard",
            "dtype": "float32",
            "seed": 0,
            "shards": 1,
            "complete": True,
            "components": 3,
            "rows_of_a_mean": 75.0,  # 900 * 8 / (32 * 3)
        }.items()
    )
    assert "advice" not in said
    shown = run("info", "sketch").stdout
    assert re.search(r"^rows +900 *$", shown, re.MULTILINE)
    assert re.search(r"^share +25\.00% *$", shown, re.MULTILINE)
    assert re.search(r"^complete +yes *$", shown, re.MULTILINE)


def test_info_advises_where_means_rest_on_few_rows(at_home: Path) -> None:
    said = asked("info", "sketch", "-k", 9)
    assert said["rows_of_a_mean"] == 25
    assert said["advice"].startswith("With 9 components, each coordinate of a mean rests on 25 rows only.")
    assert said["advice"] in run("info", "sketch", "-k", 9).stdout


def test_info_of_an_incomplete_sketch(long: Path, tmp_path: Path) -> None:
    stop_after(3, tmp_path / "out", long / "X.npy")
    said = asked("info", tmp_path / "out")
    assert not said["complete"]
    assert said["rows"] == HEIGHT * said["shards"]


def test_info_of_models(at_home: Path) -> None:
    gaussian, kmeans, pca = (asked("info", f"{model}.safetensors") for model in commands.MODELS)
    model: Any = sm.load("gaussian.safetensors")
    assert gaussian["kind"] == "GaussianMixture"
    assert gaussian["weights"] == model.weights_.tolist()
    assert (gaussian["iterations"], gaussian["converged"]) == (model.n_iter_, True)
    assert gaussian["log_likelihood"] == model.lower_bound_
    assert (kmeans["kind"], kmeans["clusters"]) == ("KMeans", 3)
    assert kmeans["inertia"] == sm.load("kmeans.safetensors").inertia_
    assert (pca["kind"], pca["components"], len(pca["explained_variance_ratio"])) == ("PCA", 3, 3)
    assert all(said["features"] == N_FEATURES and said["seed"] == 0 for said in (gaussian, kmeans, pca))


def test_fit_hands_its_options_on(at_home: Path) -> None:
    arguments = ["--covariance", "low_rank", "--rank", "2", "--n-init", "2", "--max-iter", "7", "--tol", "0.5"]
    output = at_home / "model.safetensors"
    said = asked("fit", "sketch", "-k", 2, *arguments, "--reg-covar", "0.01", "--seed", 5, "-o", output)
    expected = sm.GaussianMixture(
        2, covariance_type="low_rank", rank=2, n_init=2, max_iter=7, tol=0.5, reg_covar=0.01, random_state=5
    )
    assert sm.load(output).get_params() == expected.get_params()
    assert said["rank"] == 2
    assert said["weights"] == expected.fit(sm.Sketch.open("sketch")).weights_.tolist()


def test_a_warning_is_a_line(at_home: Path) -> None:
    arguments = ["fit", "sketch", "-k", 3, "--max-iter", 1, "--seed", 0, "-o", at_home / "model.safetensors"]
    (caution,) = asked(*arguments)["warnings"]
    assert caution.startswith("EM did not converge in 1 iterations.")
    assert run(*arguments).stderr == f"warning: {caution}\n"
    grid = ["select", "sketch", "-k", "2,3", "--max-iter", 1]
    assert len(run(*grid).stderr.splitlines()) == 1


def test_select_marks_the_best(at_home: Path) -> None:
    grid = ["select", "sketch", "-k", "2:4", "--covariance", "diag,spherical", "--criterion", "aic", "--seed", 0]
    said = asked(*grid, "-o", at_home / "best.safetensors")
    sketched = sm.Sketch.open("sketch")
    expected = sm.select(sketched, [2, 3, 4], ["diag", "spherical"], criterion="aic", random_state=0)
    assert [line["value"] for line in said["table"]] == [outcome.value for outcome in expected.table]
    best = [line for line in said["table"] if line["best"]]
    assert [line["value"] for line in best] == [min(outcome.value for outcome in expected.table)]
    assert sm.load(at_home / "best.safetensors").get_params() == expected.best.get_params()
    marked = [line for line in run(*grid).stdout.splitlines() if "*" in line]
    assert len(marked) == 1
    assert f"{best[0]['value']:,.1f}" in marked[0]


@pytest.mark.parametrize("width", [80, 50])
def test_a_narrow_terminal_shows_all_digits(width: int) -> None:
    values = (-1_234_567.1, -1_234_566.2)
    line = {"best": False, "n_components": 12, "covariance_type": "spherical", "rank": None, "value": 0.0}
    line |= {"log_likelihood": -1234.5, "n_parameters": 1_234_567, "converged": True}
    said = StringIO()
    Console(file=said, width=width).print(show.table_of([line | {"value": value} for value in values]))
    assert "…" not in said.getvalue()
    if width == 80:
        assert all(f"{value:,.1f}" in said.getvalue() for value in values)


def test_numbers_to_try() -> None:
    assert options.numbers_of("2:5") == [2, 3, 4, 5]
    assert options.numbers_of("8,2") == [8, 2]
    assert options.numbers_of("3") == [3]


@pytest.mark.parametrize(("text", "expected"), [("30", 30), ("0.1", 0.1), ("1.0", 1.0), ("auto", "auto")])
def test_sizes(text: str, expected: object) -> None:
    value = options.size_of(text)
    assert value == expected
    assert type(value) is type(expected)


def test_demo_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "N_IMAGES", 300)
    ours, theirs = asked("demo")["table"]
    assert ours["bytes"] == 300 * demo.SKETCH_SIZE * 6
    assert theirs["bytes"] == 300 * demo.SIDE**2 * 4
    assert 0.25 <= ours["accuracy"] <= 1
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = asked("demo", "-o", tmp_path / "demo.png", code=1)
    assert said == {"error": 'matplotlib is needed to draw: pip install "sketchmix[demo]".'}


# -- predictions ------------------------------------------------------------------------------------------


def read_columns(path: Path) -> dict[str, Array]:
    """The columns of a .csv or .parquet file."""
    read = pa.csv.read_csv if path.suffix == ".csv" else pa.parquet.read_table
    table = read(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("rows", ["X.npy", "sketch"])
def test_labels_probabilities_and_scores(
    suffix: str, rows: str, at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "ROWS_AT_A_TIME", 128)
    output = at_home / f"out{suffix}"
    said = asked("predict", "gaussian.safetensors", rows, "--proba", "--scores", "-o", output)
    assert (said["rows"], said["columns"]) == (N_ROWS, ["label", "proba", "score"])
    model: Any = sm.load("gaussian.safetensors")
    X = sm.Sketch.open("sketch") if rows == "sketch" else np.load(rows)
    found = read_columns(output)
    assert list(found) == ["label", "proba_0", "proba_1", "proba_2", "score"]
    assert_array_equal(found["label"], model.predict(X))
    assert_array_equal(np.stack([found[f"proba_{k}"] for k in range(3)], axis=1), model.predict_proba(X))
    assert_array_equal(found["score"], model.score_samples(X))


@pytest.mark.parametrize(
    ("model", "option", "method"),
    [
        ("gaussian", [], "predict"),
        ("gaussian", ["--proba"], "predict_proba"),
        ("gaussian", ["--scores"], "score_samples"),
        ("kmeans", [], "predict"),
        ("pca", [], "transform"),
        ("pca", ["--scores"], "score_samples"),
    ],
)
def test_one_array(
    model: str, option: list[str], method: str, at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "ROWS_AT_A_TIME", 77)
    output = at_home / "out.npy"
    run("predict", f"{model}.safetensors", "sketch", "-o", output, *option)
    expected = getattr(sm.load(f"{model}.safetensors"), method)(sm.Sketch.open("sketch"))
    found = np.load(output)
    assert found.dtype == expected.dtype
    assert_allclose(found, expected, rtol=1e-12)


def test_a_failure_leaves_the_old_predictions(at_home: Path) -> None:
    X = clusters().astype(np.float64)
    X[-1, 3] = np.nan
    np.save(at_home / "X.npy", X)
    output = at_home / "labels.npy"
    output.write_bytes(b"old")
    said = run("predict", "gaussian.safetensors", at_home / "X.npy", "-o", output, code=1).stderr
    assert "NaN" in said
    assert len(said.splitlines()) == 1
    assert output.read_bytes() == b"old"
    assert sorted(path.name for path in at_home.iterdir()) == ["X.npy", "labels.npy"]


def test_parquet_needs_pyarrow(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    said = asked("predict", "gaussian.safetensors", "sketch", "-o", at_home / "labels.parquet", code=1)
    assert said == {"error": 'pyarrow is needed to write Parquet: pip install "sketchmix[parquet]".'}
    assert list(at_home.iterdir()) == []


def test_models_need_safetensors_before_the_fit(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    monkeypatch.setattr(sm.GaussianMixture, "fit", None)
    for command in ("fit", "select"):
        said = asked(command, "sketch", "-k", 2, "-o", at_home / "model", code=1)
        assert 'pip install "sketchmix[models]"' in said["error"]


# -- mistakes ---------------------------------------------------------------------------------------------

MISTAKES = {
    "sketch X.npy sketch": "'sketch' holds a sketch already; give --resume to go on with it, or another folder.",
    "sketch X.npy .": "'.' is not empty",
    "sketch X.npy X.npy/out": "X.npy/out: Not a directory",
    "sketch none.npy {out}": "none.npy: No such file or directory",
    "sketch none.parquet {out}": "none.parquet",
    "sketch none.zarr {out}": "none.zarr",
    "sketch none.h5 {out}": "none.h5",
    "sketch none.csv {out}": "none.csv",
    "sketch rows.csv {out}": "in place of names; give --no-header if it is a row",
    "sketch none.bin {out}": "none.bin does not say how long its rows are; give --n-features.",
    "sketch none.npz {out}": "none.npz ends in '.npz'; expected one of",
    "sketch two.h5 {out}": "data sets 'a', 'b'; expected one. Name one of them, as in --dataset NAME.",
    "sketch sketch {out}": "no Parquet files are at 'sketch'",
    "sketch gaussian.safetensors {out} --n-features 1000003": "are no whole number of rows",
    "sketch X.npy {out} --sketch-size 33": "sketch_size=33 is more than the 32 features of a row",
    "sketch X.npy {out} --sketch-size 1.5": "a share of the features, in (0, 1]; got 1.5",
    "sketch X.npy {out} --sketch-size 4 --n-shared 5": "n_shared=5 is more than",
    "sketch X.npy {out} --seed 0 --rows 901:1000": "the source has 900 rows",
    "sketch X.npy sketch --resume --sketch-size 8 --seed 1": "begun with random_state=0, and cannot go on with 1",
    "sketch X.npy sketch --resume --sketch-size 9 --seed 0": "was begun with sketch_size=8",
    "fit none -k 2 -o {out}": "there is no sketch in 'none'",
    "fit X.npy -k 2 -o {out}": "there is no sketch in 'X.npy'",
    "fit sketch sketch -k 2 -o {out}": "sketch parts that follow each other, as with --rows.",
    "fit sketch -k 901 -o {out}": "n_components=901 is more than the number of rows",
    "fit sketch -k 2 --covariance low_rank --rank 32 -o {out}": "rank=32 must be less than n_features=32",
    "fit sketch -k 32 --model pca -o {out}": "n_components=32 must be less than n_features=32",
    "predict none X.npy -o {out}.npy": "none",
    "predict X.npy X.npy -o {out}.npy": "X.npy cannot be loaded",
    "predict kmeans.safetensors X.npy --proba -o {out}.csv": "KMeans has no predict_proba; leave --proba out.",
    "predict kmeans.safetensors X.npy --scores -o {out}.npy": "KMeans has no score_samples; leave --scores out.",
    "predict gaussian.safetensors none.npy -o {out}.npy": "none.npy: No such file or directory",
    "predict gaussian.safetensors X.npy --n-features 1 -o {out}.npy": "has 1 features, but",
    "info none": "none",
    "info .": "there is no sketch in '.'",
    "info X.npy": "X.npy cannot be loaded",
    "select sketch -k 2 --covariance round": "covariance_type must be one of",
    "select sketch -k 2 --rank 3": "rank is used with covariance_type='low_rank' only",
    "select sketch -k 0:3": "n_components must be at least 1; got 0",
}

MISUSES = {
    "": "Usage:",
    "frobnicate": "No such command 'frobnicate'",
    "sketch X.npy": "Missing argument 'OUT'",
    "sketch X.npy {out} --sketch-size many": "'many' is not a number of entries, a share such as 0.1, or auto.",
    "sketch X.npy {out} --rows 5:2": "'5:2' is not two row numbers such as 0:1000",
    "sketch X.npy {out} --rows 5": "'5' is not two row numbers",
    "sketch X.npy {out} --rows-per-shard 0": "0 is not in the range x>=1",
    "sketch X.npy {out} --transform fft": "'fft' is not one of 'auto', 'hadamard'",
    "sketch X.npy {out} --dtype int8": "'int8' is not one of",
    "sketch X.npy {out} --seed -1": "-1 is not in the range",
    "sketch X.npy {out} --columns a": "--columns says nothing of how X.npy is read; leave it out.",
    "sketch X.npy {out} --no-header": "--header says nothing of how X.npy is read; leave it out.",
    "sketch X.npy {out} --raw-dtype int8": "--raw-dtype says nothing of how X.npy is read; leave it out.",
    "sketch X.npy {out} --dataset a": "--dataset says nothing of how X.npy is read; leave it out.",
    "sketch X.npy X.npy": "is a file",
    "fit -k 2 -o {out}": "Missing argument 'SKETCH...'",
    "fit sketch -o {out}": "Missing option '-k'",
    "fit sketch -k 2": "Missing option '-o'",
    "fit sketch -k 0 -o {out}": "0 is not in the range x>=1",
    "fit sketch -k 2 -o none/model": "there is no folder 'none'; make it first.",
    "fit sketch -k 2 -o sketch": "is a directory",
    "fit sketch -k 2 --covariance round -o {out}": "'round' is not one of 'diag'",
    "fit sketch -k 2 --model kmeans --covariance diag -o {out}": "--covariance is not for --model kmeans",
    "fit sketch -k 2 --model pca --n-init 3 -o {out}": "--n-init is not for --model pca; leave it out.",
    "fit sketch -k 2 --rank some -o {out}": "'some' is not a number, or auto.",
    "predict gaussian.safetensors X.npy": "Missing option '-o'",
    "predict gaussian.safetensors X.npy -o {out}.txt": "ends in '.txt'; expected one of .npy, .csv, .parquet.",
    "predict gaussian.safetensors X.npy --proba --scores -o {out}.npy": "a .npy file holds one array",
    "info gaussian.safetensors -k 2": "-k is for sketches; leave it out.",
    "select sketch -k 4:2": "'4:2' is not a range such as 2:10, or numbers such as 2,4,8.",
    "select sketch -k few": "'few' is not a range such as 2:10, or numbers such as 2,4,8.",
    "select sketch -k 2 --criterion best": "'best' is not one of 'bic'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_answered_in_a_line(line: str, at_home: Path) -> None:
    arguments = line.format(out=at_home / "out").split()
    said = run(*arguments, code=1)
    assert said.stdout == ""
    assert MISTAKES[line] in said.stderr
    assert re.fullmatch(r"error: [^\n]+\n", said.stderr)
    assert MISTAKES[line] in asked(*arguments, code=1)["error"]


@pytest.mark.parametrize("line", MISUSES)
def test_misuse_is_answered_with_the_usage(line: str, at_home: Path) -> None:
    arguments = line.format(out=at_home / "out").split()
    said = run(*arguments, code=2)
    assert said.stdout == ""
    assert MISUSES[line] in said.stderr
    if arguments:
        assert MISUSES[line] in asked(*arguments, code=2)["error"]


def test_messages_of_arguments_become_those_of_options() -> None:
    modules = Path(sm.__file__).parent.rglob("*.py")
    texts = [path.read_text() for path in modules if "cli" not in path.parts]
    said = " ".join("".join(re.findall(r'"([^"\n]*)"', text)) for text in texts)
    assert [phrase for phrase in manners.OPTIONS_OF_ARGUMENTS if phrase not in said] == []


def test_a_mistake_of_ours_is_no_line(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(facts, "of_sketch", broken)
    with pytest.raises(KeyError, match="ours"):
        run("info", "sketch")


def test_a_sketch_of_another_rotation_is_refused(at_home: Path) -> None:
    run("sketch", "X.npy", at_home / "other", "--sketch-size", SIZE, "--seed", 1)
    said = run("predict", "gaussian.safetensors", at_home / "other", "-o", at_home / "labels.npy", code=1).stderr
    assert "sketch with the seed and the options of the model's sketch" in said


# -- progress ---------------------------------------------------------------------------------------------


class Terminal:
    """Stderr of which rich and click think that it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return True


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, bar: Callable[..., Any], *what: Any, quiet: bool) -> str:
    terminal = Terminal()
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", terminal)
    with bar(*what, quiet=quiet) as tell:
        for n_done in (1000, 2000, 3000):
            tell(n_done)
            time.sleep(0.01)
    return terminal.text


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_on_a_terminal(monkeypatch, show.rows_bar, "sketching", 6000, quiet=False)
    assert "3,000 of 6,000 rows" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "rows/s" in shown
    shown = shown_on_a_terminal(monkeypatch, show.fits_bar, "fitting", None, "mixtures", quiet=False)
    assert "3,000 mixtures" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


def test_no_progress_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, at_home: Path) -> None:
    assert shown_on_a_terminal(monkeypatch, show.rows_bar, "sketching", 6000, quiet=True) == ""
    done = shell("sketch", "X.npy", at_home / "out")
    assert done.stderr == ""


def test_iterations_are_counted(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    @contextmanager
    def noting(what: str, total: int, unit: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
        assert (total, quiet) == (9, True)
        yield told.append

    from sketchmix.cli import tasks  # noqa: PLC0415

    monkeypatch.setattr(tasks, "fits_bar", noting)
    said = asked("fit", "sketch", "-k", 3, "--max-iter", 9, "-o", at_home / "model", "--quiet")
    assert told == list(range(1, said["iterations"] + 1))


def test_mixtures_are_counted(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    @contextmanager
    def noting(what: str, total: None, unit: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
        assert (unit, quiet) == ("mixtures", False)
        yield told.append

    from sketchmix.cli import tasks  # noqa: PLC0415

    monkeypatch.setattr(tasks, "fits_bar", noting)
    asked("select", "sketch", "-k", "2,3", "--covariance", "diag,spherical")
    assert told == [1, 2, 3, 4]


# -- being stopped ----------------------------------------------------------------------------------------

N_LONG, HEIGHT = 3000, 60


def sketching(source: object, out: Path) -> list[str]:
    """A command that writes many small files."""
    given = ["--sketch-size", SIZE, "--seed", 0, "--rows-per-shard", HEIGHT]
    return [str(argument) for argument in ("sketch", source, out, *given)]


def n_shards(folder: Path) -> int:
    """How many shards are there for good."""
    manifest = folder / "manifest.json"
    return len(json.loads(manifest.read_bytes())["shards"]) if manifest.exists() else 0


def stop_after(least: int, out: Path, source: Path) -> tuple[int, str]:
    """Stop sketching with Ctrl-C once there are some shards; the exit code, and what is said."""
    process = subprocess.Popen([SCRIPT, *sketching(source, out)], stderr=subprocess.PIPE, text=True)
    while n_shards(out) < least and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with more rows, and what an uninterrupted run makes of them."""
    folder = tmp_path_factory.mktemp("long")
    np.save(folder / "X.npy", clusters(N_LONG))
    run(*sketching(folder / "X.npy", folder / "whole"))
    return folder


def test_ctrl_c_says_how_to_go_on(long: Path, tmp_path: Path) -> None:
    out = tmp_path / "a sketch"
    code, said = stop_after(5, out, long / "X.npy")
    assert code == 130
    assert 5 <= n_shards(out) < N_LONG // HEIGHT
    stopped, _, command = said.partition("Go on with: ")
    assert stopped == "error: stopped; what was sketched is kept. "
    refused = run("fit", out, "-k", 2, "-o", tmp_path / "model", code=1).stderr
    assert "Finish it with --resume, or take these with --allow-incomplete." in refused
    assert asked("fit", out, "-k", 2, "-o", tmp_path / "model", "--allow-incomplete")["rows"] >= 5 * HEIGHT
    program, *arguments = shlex.split(command)
    assert (program, arguments[-1]) == ("sketchmix", "--resume")
    shell(*arguments)
    assert contents(out) == contents(long / "whole")


def test_ctrl_c_elsewhere(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sm.GaussianMixture, "fit", interrupted)
    arguments = ["fit", "sketch", "-k", 2, "-o", at_home / "model"]
    assert run(*arguments, code=130).stderr == "error: stopped.\n"
    assert asked(*arguments, code=130) == {"error": "stopped."}


def test_resuming_is_said_once() -> None:
    arguments = ("sketch", "my rows.npy", "out", "--resume", "--seed", "0")
    assert commands.resuming(arguments) == "sketchmix sketch 'my rows.npy' out --resume --seed 0"


def do_not_wait(fd: object) -> None:
    """Instead of `os.fsync`: a process that is killed takes nothing along that it wrote."""


def sketch_in_child(arguments: list[str]) -> None:
    os.fsync = do_not_wait
    commands.sketchmix.main(arguments)


@contextmanager
def begun(arguments: list[str], out: Path, least: int = 1) -> Iterator[Any]:
    """A process that has sketched some shards, at least."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.test_cli"])
    process = server.Process(target=sketch_in_child, args=(arguments,))
    process.start()
    while n_shards(out) < least and process.is_alive():
        time.sleep(0.0002)
    yield process
    process.join(60)


def test_a_sketch_survives_being_killed_at_any_moment(
    long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", do_not_wait)
    whole, in_the_middle = contents(long / "whole"), 0
    rng = np.random.default_rng(0)
    for number in range(20):
        out = tmp_path / str(number)
        arguments = sketching(long / "X.npy", out)
        with begun(arguments, out, least=int(rng.integers(N_LONG // HEIGHT))) as process:
            time.sleep(rng.uniform(0, 0.01))
            process.kill()
        in_the_middle += 0 < n_shards(out) < N_LONG // HEIGHT
        run(*arguments, "--resume")
        assert contents(out) == whole
    assert in_the_middle >= 5


def test_what_is_killed_before_it_began_can_be_resumed(long: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f".{0:032x}.unfinished").write_bytes(b"{")  # of a manifest
    run(*sketching(long / "X.npy", tmp_path / "out"), "--resume")
    assert contents(tmp_path / "out") == contents(long / "whole")


def test_a_second_writer_is_refused(long: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with begun(sketching(long / "X.npy", out), out) as process:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            for more in ([], ["--resume"]):
                said = run(*sketching(long / "X.npy", out), *more, code=1).stderr
                assert f"another process is writing to the sketch in '{out}'; wait for it" in said
        finally:
            os.kill(process.pid, signal.SIGCONT)
    assert contents(out) == contents(long / "whole")
