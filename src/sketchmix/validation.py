"""Every check of what a user hands over, and every message. Errors name the value, what was expected, the cure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils import assert_all_finite, check_array

if TYPE_CHECKING:
    from sketchmix.families import Family, LowRank
    from sketchmix.sketch import Sketch, Sketcher

Array = NDArray[Any]

SKETCH_DTYPES = ("float16", "float32", "float64")
LARGEST_ROW = 2**62


def check_integer(name: str, value: object, *, least: int) -> int:
    """`value` as an int that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer; got {value!r} of type {type(value).__name__}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}.")
    return int(value)


def check_real(name: str, value: object, *, least: float = 0.0) -> float:
    """`value` as a finite float that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {value!r} of type {type(value).__name__}.")
    if not least <= float(value) < np.inf:
        raise ValueError(f"{name} must be finite and at least {least:g}; got {value}.")
    return float(value)


def check_verbose(value: object) -> int:
    """How much to print: a number, or a truth value."""
    return int(value) if isinstance(value, bool) else check_integer("verbose", value, least=0)


def check_choice(name: str, value: object, choices: Collection[str]) -> str:
    """`value`, if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value


def several(name: str, value: object, kind: type, words: str) -> list[Any]:
    """One value of a kind, or what may be several, as a list."""
    if isinstance(value, kind):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise TypeError(f"{name} must be {words}, or several; got {value!r} of type {type(value).__name__}.")
    values = list(value)
    if not values:
        raise ValueError(f"{name} is empty; give at least one value to try.")
    return values


def check_integers(name: str, value: object) -> list[int]:
    """One positive integer or several, each once."""
    values = several(name, value, Integral, "an integer")
    return list(dict.fromkeys(check_integer(name, item, least=1) for item in values))


def check_choices(name: str, value: object, choices: Collection[str]) -> list[str]:
    """One of `choices` or several, each once."""
    values = several(name, value, str, "a string")
    return list(dict.fromkeys(check_choice(name, item, choices) for item in values))


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """The type in which a sketch stores its values."""
    try:
        checked: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        checked = np.dtype(object)
    if checked.name not in SKETCH_DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, SKETCH_DTYPES))}; got {dtype!r}.")
    return checked.newbyteorder("=")


def check_sketch_size(sketch_size: object, n_features: int) -> int:
    """How many entries of a row to keep: an int, a share of `n_features` as a float, or "auto"."""
    if isinstance(sketch_size, str) and sketch_size == "auto":
        return n_features if n_features <= 64 else max(64, round(0.1 * n_features))
    if isinstance(sketch_size, bool) or not isinstance(sketch_size, Real):
        kind = ValueError if isinstance(sketch_size, str) else TypeError
        raise kind(
            f"sketch_size must be an integer, a share of the features in (0, 1], or 'auto'; got {sketch_size!r}."
        )
    if not isinstance(sketch_size, Integral):
        if not 0 < float(sketch_size) <= 1:
            raise ValueError(
                f"sketch_size given as a float is a share of the features, in (0, 1]; got {sketch_size}. "
                "Give an int for a number of entries."
            )
        return max(1, round(float(sketch_size) * n_features))
    size = check_integer("sketch_size", sketch_size, least=1)
    if size > n_features:
        raise ValueError(
            f"sketch_size={size} is more than the {n_features} features of a row; "
            f"keep at most {n_features}, or give a share such as 0.1."
        )
    return size


def check_n_shared(n_shared: object, sketch_size: int) -> int:
    """How many of the kept entries are the same in every row."""
    shared = check_integer("n_shared", n_shared, least=0)
    if shared > sketch_size:
        raise ValueError(
            f"n_shared={shared} is more than the sketch_size={sketch_size} kept entries of a row; "
            f"share at most {sketch_size}."
        )
    return shared


def check_enough_rows(name: str, value: object, n_samples: int) -> int:
    """A number of components or clusters, which needs as many rows."""
    number = check_integer(name, value, least=1)
    if number > n_samples:
        raise ValueError(f"{name}={number} is more than the number of rows, n_samples={n_samples}; lower {name}.")
    return number


def check_first_batch(name: str, value: object, n_samples: int) -> int:
    """A number of components or clusters that the first rows of a stream, or those since, can start."""
    number = check_integer(name, value, least=1)
    if number > n_samples:
        raise ValueError(
            f"the first batch has {n_samples} rows, fewer than {name}={number}; "
            f"begin with a batch of at least {number} rows, or lower {name}."
        )
    return number


def check_learning_decay(value: object) -> float:
    """The exponent by which a stream forgets."""
    decay = check_real("learning_decay", value)
    if decay > 1:
        raise ValueError(
            f"learning_decay must be in [0, 1]; got {value}. 1 forgets nothing, 0 all but a fixed number of rows."
        )
    return decay


def check_sample_weight(sample_weight: object, n_samples: int) -> Array | None:
    """One finite weight >= 0 for each row, or None."""
    if sample_weight is None:
        return None
    weight = np.array(sample_weight, dtype=float)
    if weight.shape == ():
        weight = np.full(n_samples, float(weight))
    if weight.shape != (n_samples,):
        raise ValueError(f"sample_weight has shape {weight.shape}; expected one weight a row, ({n_samples},).")
    if not np.isfinite(weight).all() or weight.min() < 0:
        raise ValueError("sample_weight must be finite and not negative; leave rows out with weight 0.")
    if not weight.any():
        raise ValueError("sample_weight is zero for every row; at least one row needs a positive weight.")
    return weight


def in_unit(weight: Array | None) -> Array | None:
    """Weights divided by a power of two, exactly, so that the largest is near 1: only ratios matter to a fit."""
    return None if weight is None else np.ldexp(weight, -int(np.frexp(weight.max())[1]))


def real_array(name: str, value: object) -> Array:
    """`value` as an array of float64."""
    array = np.asarray(value)
    if np.iscomplexobj(array):
        raise ValueError(f"{name} must be real; got complex numbers.")
    return array.astype(float)


def check_rows_by_feature(name: str, value: object, shape: tuple[int, int]) -> Array:
    """Initial means or centers: a finite matrix of the given shape, in the user's space."""
    array = real_array(name, value)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; expected {shape}, one row for each component.")
    assert_all_finite(array, input_name=name)
    return array


def check_weights_init(value: object, n_components: int) -> Array:
    """Initial weights: positive and summing to one."""
    weights = real_array("weights_init", value)
    if weights.shape != (n_components,):
        raise ValueError(f"weights_init has shape {weights.shape}; expected ({n_components},).")
    if not (weights >= 0).all() or not np.isclose(weights.sum(), 1):
        raise ValueError(
            f"weights_init must be non-negative and sum to 1; its sum is {weights.sum():g}. "
            "Divide the weights by their sum."
        )
    return weights


def check_finite(largest: float, rows: Array, dtype: np.dtype[Any]) -> None:
    """The largest magnitude that was kept of some rows is a finite number of the sketch's type.

    Every entry of a mixed row depends on every entry of the raw one, so that looking at the few kept entries
    is enough; the raw rows are only searched to say what was wrong.
    """
    with np.errstate(over="ignore"):
        # By way of float32, as the kernel rounds.
        stored = np.array(largest) if dtype == np.float64 else np.array(largest).astype(np.float32).astype(dtype)
    if np.isfinite(stored):
        return
    assert_all_finite(rows, input_name="X")
    raise ValueError(
        f"a rotated entry is too large for a sketch of dtype {dtype.name!r} (at most {np.finfo(dtype).max:g}); "
        "rescale X, or give dtype='float64'."
    )


def check_sketch_arrays(values: Array, indices: Array, sketcher: Sketcher) -> None:
    """The arrays of a Sketch that somebody else made."""
    size, n_rotated = sketcher.sketch_size_, sketcher.n_rotated_
    if values.dtype.name not in SKETCH_DTYPES:
        raise TypeError(f"values have dtype {values.dtype}; expected one of {', '.join(SKETCH_DTYPES)}.")
    if indices.dtype.name not in ("uint16", "uint32"):
        raise TypeError(f"indices have dtype {indices.dtype}; expected uint16 or uint32.")
    if values.ndim != 2 or values.shape != indices.shape or values.shape[1] != size:
        raise ValueError(
            f"values have shape {values.shape} and indices {indices.shape}; "
            f"expected (n_samples, {size}) for both, as the sketcher keeps {size} entries a row."
        )
    check_largest_index(int(indices.max(initial=0)), n_rotated)
    if not (indices[:, 1:] > indices[:, :-1]).all():
        raise ValueError("indices must increase along each row: sort each row's entries by their index.")
    if not np.isfinite(values).all():
        raise ValueError("values contain NaN or infinity; a sketch holds finite entries only.")


def check_rotated(Y: object, n_rotated: int) -> Array:
    """Rows in the rotated frame, as floats."""
    rotated: Array = check_array(Y, dtype=[np.float64, np.float32], ensure_min_samples=0)
    if rotated.shape[1] != n_rotated:
        raise ValueError(f"Y has {rotated.shape[1]} entries a row; rotated rows have {n_rotated}.")
    return rotated


def has_pairs(sketch: Sketch) -> bool:
    """Whether pairs of free entries are seen together, which second moments of mixed rows need."""
    free = sketch.sketch_size - len(sketch.sketcher.shared_indices_)
    return free >= 2 or sketch.sketch_size == sketch.sketcher.n_rotated_


def check_pairs(sketch: Sketch) -> None:
    """What the variance needs: of mixed rows, pairs of entries; of others, every feature now and then."""
    free = sketch.sketch_size - len(sketch.sketcher.shared_indices_)
    if sketch.sketcher.transform_ != "none" and not has_pairs(sketch):
        raise ValueError(
            f"the variance needs at least 2 entries of each row beyond the shared ones; this sketch keeps {free}. "
            "Sketch with a larger sketch_size, or with transform='none'."
        )
    if free == 0 and sketch.sketch_size < sketch.sketcher.n_rotated_:
        raise ValueError(
            "all kept entries are shared, so that the other features were never seen and have no variance; "
            "lower n_shared."
        )


def check_pairs_of_every_kind(sketch: Sketch) -> None:
    """What the covariance needs: every two features kept together now and then, whether rows are mixed or not."""
    free = sketch.sketch_size - len(sketch.sketcher.shared_indices_)
    if not has_pairs(sketch):
        raise ValueError(
            "the covariance needs at least 2 entries of each row beyond the shared ones; "
            f"this sketch keeps {free}. Sketch with a larger sketch_size, or a smaller n_shared."
        )


def check_positions(rows: object) -> Array:
    """Which rows of a sketch: a mask, or positions."""
    which = np.asarray(rows)
    if which.ndim != 1:
        raise TypeError("a Sketch is indexed by a slice, a mask or a 1-d array of rows, as in sketch[a:b].")
    return which if len(which) else which.astype(np.intp)


def check_first_row(first_row: object) -> int:
    """The number of a row."""
    number = check_integer("first_row", first_row, least=0)
    if number > LARGEST_ROW:
        raise ValueError(f"first_row must be at most 2^62; got {number}.")
    return number


def check_span(rows: object) -> tuple[int, int | None]:
    """Which rows of a source: (first, after), or all."""
    if rows is None:
        return 0, None
    if not isinstance(rows, tuple | list) or len(rows) != 2:
        raise TypeError(f"rows must be a pair (first, after), as in rows=(0, 1000); got {rows!r}.")
    first = check_integer("rows[0]", rows[0], least=0)
    return first, check_integer("rows[1]", rows[1], least=first)


def check_some_batch(batch: object, sketcher: Sketcher) -> None:
    """A sketcher that has seen no rows cannot know how wide they are."""
    if batch is None and not hasattr(sketcher, "signs_"):
        raise ValueError("the source has no rows to tell how many features there are; fit the sketcher first.")


def check_readable(sketch: Sketch, *, least: int = 0) -> None:
    """A sketch whose arrays were not written to, with enough rows."""
    check_largest_index(sketch.kept.largest_index, sketch.sketcher.n_rotated_)
    if len(sketch) < least:
        raise ValueError(f"the sketch has {len(sketch)} rows; at least {least} is needed.")


def check_sketch(value: object) -> None:
    """A sketch, where rows will not do."""
    if not hasattr(value, "sketcher"):
        raise TypeError(
            f"select fits many mixtures to one sketch; got {type(value).__name__}. Sketch the rows first, as in "
            "sm.Sketcher(sketch_size=64).fit_transform(X)."
        )


def check_rank_is_used(families: list[str], low_rank: str) -> None:
    """Ranks are for the one family that has some."""
    if low_rank not in families:
        raise ValueError(
            f"rank is used with covariance_type={low_rank!r} only; got {', '.join(map(repr, families))}. "
            f"Add {low_rank!r} to covariance_type, or leave rank out."
        )


def check_parameters_of_fits(names: Collection[str], shared: set[str], settled: set[str]) -> None:
    """Parameters that all fits to one sketch can share."""
    for name in names:
        if name in settled:
            raise ValueError(f"{name} was settled when the rows were sketched; give it to the Sketcher.")
        if name not in shared:
            raise TypeError(
                f"{name!r} is no parameter that select could hand on to each GaussianMixture; "
                f"those are {', '.join(sorted(shared))}."
            )


def check_initial_values(parameters: Collection[str], numbers: set[int]) -> None:
    """Initial weights and means are those of one number of components."""
    for name in ("weights_init", "means_init"):
        if name in parameters and len(numbers) > 1:
            raise ValueError(
                f"{name} is for one number of components, but n_components has {len(numbers)}; give one, "
                f"or leave {name} out."
            )


def check_joinable(sketches: list[Sketch]) -> None:
    """Sketches that can be one: at least one, of one operator and one type."""
    if not sketches:
        raise ValueError("concatenate needs at least one sketch; got none.")
    first = sketches[0]
    for i, other in enumerate(sketches):
        if not hasattr(other, "sketcher"):
            raise TypeError(f"concatenate joins sketches; item {i} is of type {type(other).__name__}.")
        if not first.sketcher.is_same_operator(other.sketcher):
            raise ValueError(
                f"sketch {i} was made by another sketcher than sketch 0; make all parts with one fitted Sketcher."
            )
        if type(other.kept) is not type(first.kept):
            raise ValueError(
                f"sketch {i} and sketch 0 lie in different places: one in Dask's workers, the other here; "
                "hand both to the workers with Sketch.distribute, or none."
            )
        if other.dtype != first.dtype:
            raise ValueError(f"sketch {i} has dtype {other.dtype}, sketch 0 {first.dtype}; use one dtype.")


def check_largest_index(largest: int, n_rotated: int) -> None:
    """The one thing that a kernel must be able to trust."""
    if largest >= n_rotated:
        raise ValueError(
            f"indices contain {largest}, but rotated rows have {n_rotated} entries "
            f"(0 to {n_rotated - 1}): the sketch was tampered with or is damaged; sketch the rows again."
        )


def check_component(k: object, n_components: int) -> None:
    """The number of a component."""
    if check_integer("k", k, least=0) >= n_components:
        raise ValueError(f"k={k}, but the components are numbered 0 to {n_components - 1}.")


def check_rank(rank: object, n_features: int) -> None:
    """The rank of low-rank covariances: less than the number of features, or chosen by the data."""
    if isinstance(rank, str) and rank != "auto":
        raise ValueError(f"rank must be an integer or 'auto'; got {rank!r}.")
    lowest = 1 if isinstance(rank, str) else check_integer("rank", rank, least=1)
    if lowest >= n_features:
        raise ValueError(f"rank={rank!r} must be less than n_features={n_features}; lower it, or take 'full'.")


def check_n_directions(n_components: int, n_features: int) -> None:
    """How many principal components: some direction must be left for the noise."""
    if n_components >= n_features:
        raise ValueError(
            f"n_components={n_components} must be less than n_features={n_features}; lower n_components."
        )


def check_coordinates(X: object, n_components: int) -> Array:
    """Coordinates along principal components, as floats."""
    coordinates: Array = check_array(X, dtype=[np.float64, np.float32], ensure_min_samples=0)
    if coordinates.shape[1] != n_components:
        raise ValueError(f"X has {coordinates.shape[1]} columns; expected {n_components}, one for each component.")
    return coordinates


def check_low_rank(family: Family[Any, Any]) -> LowRank:
    """What only mixtures of low-rank covariances have."""
    if family.name != "low_rank":
        raise ValueError(
            f"only covariance_type='low_rank' has latent coordinates; this model has {family.name!r}."
        )
    return cast("LowRank", family)


def check_warm_start(wanted: dict[str, object], fitted: dict[str, object]) -> None:
    """A fit can go on from a model of its own kind only."""
    check_same_kind(wanted, fitted, "warm_start", "set warm_start=False to fit anew")


def check_stream(wanted: dict[str, object], fitted: dict[str, object]) -> None:
    """A stream goes on with a model of one kind."""
    check_same_kind(wanted, fitted, "partial_fit", "call fit, or begin with a clone")


def check_same_kind(wanted: dict[str, object], fitted: dict[str, object], name: str, cure: str) -> None:
    """What goes on from a model must want one of its kind."""
    if wanted != fitted:
        was, now = (", ".join(f"{name}={value!r}" for name, value in kind.items()) for kind in (fitted, wanted))
        raise ValueError(f"{name} goes on from a fit with {was}, but now it is {now}; {cure}.")


def check_same_frame(sketch: Sketch, sketcher: Sketcher) -> None:
    """A model can read a sketch that was made in its own rotated frame only."""
    if not sketcher.has_same_frame(sketch.sketcher):
        raise ValueError(
            f"the sketch was made by {sketch.sketcher!r}, whose rotation differs from that of the fitted model; "
            "make the sketch with the model's `sketcher_`."
        )


def check_same_sketcher(sketch: Sketch, sketcher: Sketcher) -> None:
    """Batches of a stream keep entries of one frame, as many of each row, by one rule."""
    if not sketcher.is_same_operator(sketch.sketcher):
        raise ValueError(
            f"the sketch was made by {sketch.sketcher!r}, another sketcher than that of the batches before; "
            "make it with the model's `sketcher_`."
        )


def check_fitted(estimator: object, attribute: str) -> None:
    """Raise scikit-learn's own error where `attribute` is missing."""
    if not hasattr(estimator, attribute):
        raise NotFittedError(
            f"This {type(estimator).__name__} instance is not fitted yet. "
            "Call 'fit' with appropriate arguments before using this estimator."
        )


def check_rows(X: object) -> None:
    """Raw rows themselves, and not where they lie or come from."""
    if hasattr(X, "sketcher"):
        raise TypeError(f"raw rows are expected here; got {X!r}.")
    if hasattr(X, "__dask_graph__"):
        raise TypeError(
            f"rows in memory are expected here; got a Dask collection ({type(X).__name__}). Fit or predict it, "
            "sketch it with Sketcher.transform, or give its blocks one by one."
        )
    if isinstance(X, str | PathLike | Iterator):
        raise TypeError(
            f"rows are expected here, and not a path or an iterator; got {X!r}. "
            "Give sketchmix.sources.source_of of it."
        )


# -- sources of rows --------------------------------------------------------------------------------------


def check_row_exists(first_row: object, n_rows: int | None) -> int:
    """Where to begin to read: at most behind the last row."""
    row = check_first_row(first_row)
    if n_rows is not None and row > n_rows:
        raise ValueError(f"first_row={row}, but the source has {n_rows} rows; start at one of them.")
    return row


def check_numbers(name: str, dtype: np.dtype[Any]) -> None:
    """A type of real numbers."""
    if dtype.kind not in "biuf":
        raise TypeError(
            f"{name} holds entries of type {dtype}; expected real numbers. Convert them, as to float32."
        )


def check_matrix(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """The two dimensions of rows."""
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"{name} has shape {tuple(shape)}; expected (n_samples, n_features). Reshape it.")
    if shape[0] and not shape[1]:
        raise ValueError(f"{name} has shape {tuple(shape)}; expected at least one feature.")
    return int(shape[0]), int(shape[1])


def check_unread(was_read: bool) -> None:
    """An iterator gives its batches once."""
    if was_read:
        raise ValueError(
            "this source's iterator was read already, and can be read once only; make a new source of a new "
            "iterator, or give a list of batches."
        )


def check_same_features(number: int, n_features: int, expected: int | None) -> int:
    """Every batch has the features of the first."""
    if expected is not None and n_features != expected:
        raise ValueError(
            f"batch {number} has {n_features} features, but those before it have {expected}; "
            "give batches with the same features."
        )
    return n_features


def check_rows_were_read(n_rows: int) -> None:
    """A source of which something was computed."""
    if not n_rows:
        raise ValueError("the source has no rows; at least 1 is needed.")


def check_not_truncated(path: Path, n_bytes: int, expected: int) -> None:
    """A file that is as long as its header says."""
    if n_bytes < expected:
        raise ValueError(
            f"{path} has {n_bytes} bytes, but its header tells of {expected}; copy or write it again."
        )


def check_whole_rows(path: Path, n_bytes: int, row_bytes: int) -> int:
    """How many rows are in some bytes of a file, if none is cut."""
    if n_bytes < 0 or n_bytes % row_bytes:
        raise ValueError(
            f"{path} has {n_bytes} bytes from the offset on, which are no whole number of rows of {row_bytes} "
            "bytes; check n_features, dtype and offset."
        )
    return n_bytes // row_bytes


def check_member(path: object, name: str | None, matrices: list[str], call: str) -> str:
    """Which of the matrices in a file: the one that is asked for, or the only one."""
    found = matrices if name is None else [matrix for matrix in matrices if matrix == name.strip("/")]
    if len(found) != 1:
        wanted = "one" if name is None else repr(name)
        raise ValueError(
            f"{path} has the two-dimensional data sets {', '.join(map(repr, matrices)) or '(none)'}; "
            f"expected {wanted}. Name one of them, as in {call}."
        )
    return found[0]


def check_some_files(paths: object, files: Collection[Path]) -> None:
    """Paths that lead to something."""
    if not files:
        raise ValueError(f"no Parquet files are at {str(paths)!r}; expected some that end in .parquet or .pq.")


def check_choice_of_columns(path: Path, lists: list[str], numbers: list[str]) -> list[str]:
    """The columns that rows are made of where nobody said so: the only one of lists, or all of numbers."""
    if len(lists) > 1 or not lists + numbers:
        raise ValueError(
            f"{path} has {len(lists)} columns of lists of numbers ({', '.join(map(repr, lists))}) and "
            f"{len(numbers)} of numbers; name those to read, as in columns='embedding'."
        )
    return lists or numbers


def check_names(path: Path, names: list[str]) -> None:
    """A first line of names: those of columns differ, and they are no numbers but whole ones."""
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated or all(map(is_measurement, names)):
        what = f"several times {repeated[0]!r}" if repeated else f"numbers such as {names[0]!r}"
        raise ValueError(
            f"the first line of {path} has {what} in place of names; give header=False if it is a row, or write "
            "names that differ."
        )


def is_measurement(text: str) -> bool:
    """Whether a text is a number, but not a whole one that may count columns."""
    try:
        float(text)
    except ValueError:
        return False
    return not text.strip().isdecimal()


def check_columns(path: Path, columns: list[str], kinds: dict[str, str]) -> None:
    """Columns of numbers, or one of lists of them."""
    for name in columns:
        kind = kinds.get(name, "missing")
        if kind == "lists" and len(columns) > 1:
            raise ValueError(f"column {name!r} of {path} holds lists; read it alone, with columns={name!r}.")
        if kind not in ("numbers", "lists"):
            raise ValueError(
                f"column {name!r} of {path} is {kind}; expected numbers, or lists of numbers. "
                "Convert it, or name others in columns."
            )


def check_no_nulls(name: str, is_null: Array, first_row: int) -> None:
    """A column without missing values."""
    if is_null.any():
        row = first_row + int(is_null.argmax())
        raise ValueError(f"column {name!r} is null in row {row}; fill such entries, or leave such rows out.")


def check_lengths(name: str, lengths: Array, expected: int, first_row: int) -> None:
    """Lists that are all of the same length."""
    if not (lengths == expected).all():
        row = int((lengths != expected).argmax())
        raise ValueError(
            f"column {name!r} has a list of length {lengths[row]} in row {first_row + row}; expected {expected}, "
            "as in the first row. Leave such rows out."
        )


def check_suffix(path: Path, suffixes: tuple[str, ...]) -> str:
    """What kind of file a path leads to."""
    suffix = path.suffix.lower()
    if suffix in (".bin", ".f32"):
        raise ValueError(f"{path} does not say how long its rows are; give sources.raw(path, n_features).")
    if suffix not in suffixes:
        raise ValueError(
            f"{path} ends in {suffix!r}; expected one of {', '.join(suffixes)}. "
            "For others, call the function of sketchmix.sources that reads them, such as sources.parquet(folder)."
        )
    return suffix


def check_iterable_of_batches(rows: object) -> Iterable[Any]:
    """What is neither rows nor a path must be batches."""
    if not isinstance(rows, Iterable) or isinstance(rows, bytes | Mapping):
        raise TypeError(
            "rows are taken from a Source, an array, memory-map, data frame or sparse matrix, a path, or an "
            f"iterable of batches; got {rows!r} of type {type(rows).__name__}."
        )
    return rows


# -- rows that lie with Dask ------------------------------------------------------------------------------


def check_chunks(shape: tuple[float, ...], chunks: tuple[tuple[float, ...], ...]) -> None:
    """A Dask array whose blocks are whole rows."""
    if len(shape) != 2:
        raise ValueError(f"X has shape {shape}; expected (n_samples, n_features). Reshape it.")
    if len(chunks[1]) != 1:
        raise ValueError(
            f"X has {len(chunks[1])} chunks along its features; expected whole rows in every chunk. "
            "Use X.rechunk({1: -1})."
        )


def check_known_chunks(heights: tuple[float, ...]) -> list[int]:
    """How many rows the chunks have: rows are numbered before they are read."""
    if np.isnan(heights).any():
        raise ValueError(
            "X has chunks of unknown sizes, but which entries a row keeps depends on its number; "
            "call X.compute_chunk_sizes() first."
        )
    return [int(height) for height in heights]


def check_some_blocks(blocks: Collection[object]) -> None:
    """A list of delayed blocks that has some."""
    if not blocks:
        raise ValueError("X has no blocks; give at least one.")


def check_height(found: int, expected: int) -> None:
    """A block that is what its collection says of it."""
    if found != expected:
        raise ValueError(
            f"a block of X has {found} rows, but {expected} were announced; call X.compute_chunk_sizes(), or see "
            "to it that blocks are the same whenever they are read."
        )


def check_some_workers(n_workers: int, scheduler: str) -> None:
    """A cluster that can work."""
    if not n_workers:
        raise ValueError(
            f"the cluster at {scheduler} has no workers; start some, or wait for them with "
            "client.wait_for_workers(1)."
        )


def check_own_class(kind: type) -> None:
    """An estimator of which `load` knows the class."""
    if kind.__module__.partition(".")[0] != __package__:
        raise TypeError(f"{kind.__name__} is not a class of sketchmix, and load would not know it; pickle it.")
