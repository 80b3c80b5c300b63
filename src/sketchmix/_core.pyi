from typing import Any

from numpy.typing import NDArray

level: str

def max_threads() -> int: ...

class Rotation:
    def __init__(
        self,
        *,
        n_features: int,
        n_rotated: int,
        lead: int,
        run: int,
        stride: int,
        terms: int,
        signs: NDArray[Any],
        order: NDArray[Any] | None,
        mix: NDArray[Any] | None,
        segment: NDArray[Any],
        coefficient: NDArray[Any],
        coefficients: NDArray[Any],
    ) -> None: ...

def sketch(
    rows: NDArray[Any],
    rotation: Rotation,
    seed: int,
    first_row: int,
    shared: NDArray[Any],
    free: NDArray[Any],
    values: NDArray[Any],
    indices: NDArray[Any] | None,
) -> float: ...
def statistics(
    values: NDArray[Any],
    indices: NDArray[Any],
    sample_weight: NDArray[Any] | None,
    log_weights: NDArray[Any],
    means: NDArray[Any],
    variances: NDArray[Any],
    hard: bool,
    double_precision: bool,
    shard_rows: int,
    log_likelihood: NDArray[Any],
    size: NDArray[Any],
    count: NDArray[Any],
    first: NDArray[Any],
    second: NDArray[Any],
) -> None: ...
def log_density(
    values: NDArray[Any],
    indices: NDArray[Any],
    log_weights: NDArray[Any],
    means: NDArray[Any],
    variances: NDArray[Any],
    double_precision: bool,
    out: NDArray[Any],
) -> None: ...
def low_rank_statistics(
    values: NDArray[Any],
    indices: NDArray[Any],
    sample_weight: NDArray[Any] | None,
    log_weights: NDArray[Any],
    means: NDArray[Any],
    factors: NDArray[Any],
    noise: NDArray[Any],
    double_precision: bool,
    shard_rows: int,
    log_likelihood: NDArray[Any],
    size: NDArray[Any],
    second: NDArray[Any],
    cross: NDArray[Any],
    energy: NDArray[Any],
) -> None: ...
def low_rank_posterior(
    values: NDArray[Any],
    indices: NDArray[Any],
    log_weights: NDArray[Any],
    means: NDArray[Any],
    factors: NDArray[Any],
    noise: NDArray[Any],
    double_precision: bool,
    log_density: NDArray[Any],
    latent: NDArray[Any] | None,
) -> None: ...
def solve_each(matrices: NDArray[Any], right_sides: NDArray[Any], solutions: NDArray[Any]) -> None: ...
def full_statistics(
    values: NDArray[Any],
    indices: NDArray[Any],
    sample_weight: NDArray[Any] | None,
    log_weights: NDArray[Any],
    means: NDArray[Any],
    covariances: NDArray[Any],
    shard_rows: int,
    log_likelihood: NDArray[Any],
    size: NDArray[Any],
    gradient: NDArray[Any],
    curvature: NDArray[Any],
) -> None: ...
def full_log_density(
    values: NDArray[Any],
    indices: NDArray[Any],
    log_weights: NDArray[Any],
    means: NDArray[Any],
    covariances: NDArray[Any],
    out: NDArray[Any],
) -> None: ...
