"""The spectrum against a plain transcription of the paper's algorithms 2 and 3 on the activations themselves."""

import numpy as np
import pytest
import torch

from spacecl.methods.space.spectrum import analyze_residual, explained_fraction, pivot, pseudo_inverse, regress


def filters_by_the_paper(activations: np.ndarray, core: int, threshold: float, projection: bool = True) -> int:
    """New filters beyond `core`: reduced SVD of the core, projection, subtraction, PCA, and counting, line by line."""
    n = len(activations)
    centred = activations - activations.mean(0)
    a_f, a_r = centred[:, :core], centred[:, core:]
    v_r = np.trace(a_r.T @ a_r) / (n - 1)
    if not v_r > 0:
        return 0
    a_proj = np.zeros_like(a_r)
    if core and projection:
        u, s, _ = np.linalg.svd(a_f, full_matrices=False)
        u = u[:, s > 1e-5 * max(s.max(), 1e-300)]  # only non-zero singular values (S1.1)
        a_proj = u @ (u.T @ a_r)
    v_proj = np.trace(a_proj.T @ a_proj) / (n - 1)
    a_new = a_r - a_proj
    ratios = np.linalg.svd(a_new, compute_uv=False) ** 2 / (n - 1) / v_r
    x, count = v_proj / v_r, 0
    for ratio in ratios:
        if x < threshold - 1e-9:
            x += ratio
            count += 1
    return count


def covariance(activations: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.atleast_2d(np.cov(activations, rowvar=False)))


def case(seed: int) -> tuple[np.ndarray, int]:
    """Random activations: correlated, with a core of any width, sometimes rank-deficient, sometimes partly dead."""
    rng = np.random.default_rng(seed)
    channels = int(rng.integers(2, 24))
    core = int(rng.integers(0, channels + 1))
    rank = int(rng.integers(1, channels + 4))
    activations = rng.normal(size=(200, rank)) @ (rng.normal(size=(rank, channels)) * rng.gamma(1, 1, size=channels))
    activations += rng.normal(size=(200, channels)) * rng.choice([0, 1e-2, 0.5]) + 3 * rng.normal(size=channels)
    if core > 1 and seed % 3 == 0:
        activations[:, 0] = activations[:, 1] * 2 - 1  # a core of lower rank
    if seed % 5 == 0:
        activations[:, rng.integers(0, channels)] = 4.0  # a dead channel
    if seed % 11 == 0:
        activations[:, core:] = 0.0  # a dead residual
    return activations, core


@pytest.mark.parametrize("seed", range(120))
@pytest.mark.parametrize("projection", [True, False])
def test_new_filters_are_those_that_the_papers_svd_procedure_counts(seed, projection):
    activations, core = case(seed)
    held = torch.arange(activations.shape[1]) < core
    spectrum = analyze_residual(covariance(activations), held, projection)
    for threshold in (0.5, 0.8, 0.9, 0.99, 0.999):
        assert spectrum.needed(threshold) == filters_by_the_paper(activations, core, threshold, projection), threshold


def test_without_a_core_it_is_plain_pca():
    activations, _ = case(7)
    sklearn = pytest.importorskip("sklearn.decomposition")
    spectrum = analyze_residual(covariance(activations), torch.zeros(activations.shape[1], dtype=torch.bool))
    expected = sklearn.PCA().fit(activations).explained_variance_ratio_
    np.testing.assert_allclose(spectrum.explained_variance_ratio[: len(expected)], expected, atol=1e-12)
    assert spectrum.core_explained == 0


def test_a_core_of_all_channels_leaves_nothing_to_add():
    activations, _ = case(8)
    spectrum = analyze_residual(covariance(activations), torch.ones(activations.shape[1], dtype=torch.bool))
    assert spectrum.needed(1.0) == 0
    assert spectrum.explained(0) == 1.0


def test_a_dead_layer_needs_no_filters():
    spectrum = analyze_residual(torch.zeros(5, 5), torch.tensor([True, False, False, False, False]))
    assert spectrum.needed(1.0) == 0
    assert pivot([spectrum], 2) == [0, 1]


def test_a_residual_that_the_core_explains_fully_needs_no_filters():
    rng = np.random.default_rng(0)
    core = rng.normal(size=(300, 4))
    activations = np.concatenate([core, core @ rng.normal(size=(4, 6))], 1)
    spectrum = analyze_residual(covariance(activations), torch.arange(10) < 4)
    assert spectrum.core_explained == pytest.approx(1)
    assert spectrum.needed(1.0) == 0


def test_projection_never_asks_for_more_filters_than_without_it():
    for seed in range(40):
        activations, core = case(seed)
        held = torch.arange(activations.shape[1]) < core
        assert analyze_residual(covariance(activations), held).needed(0.95) <= analyze_residual(
            covariance(activations), held, False
        ).needed(0.95)


def test_pivoting_explains_what_a_greedy_search_over_regressions_explains():
    rng = np.random.default_rng(3)
    activations = rng.normal(size=(500, 5)) @ rng.normal(size=(5, 9)) + 0.1 * rng.normal(size=(500, 9))
    matrix = covariance(activations)
    chosen = pivot([analyze_residual(matrix, torch.zeros(9, dtype=torch.bool))], 4)
    centred = activations - activations.mean(0)
    greedy: list[int] = []
    for _ in range(4):
        errors = {}
        for candidate in set(range(9)) - set(greedy):
            basis = centred[:, [*greedy, candidate]]
            fitted = basis @ np.linalg.lstsq(basis, centred, rcond=None)[0]
            errors[candidate] = ((centred - fitted) ** 2).sum()
        greedy.append(min(errors, key=errors.get))
    assert chosen == greedy


def test_pivoting_over_several_places_serves_them_together():
    first = analyze_residual(torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.zeros(3, dtype=torch.bool))
    second = analyze_residual(torch.diag(torch.tensor([0.0, 1.0, 9.0])), torch.zeros(3, dtype=torch.bool))
    assert pivot([first], 1) == [0]
    assert pivot([second], 1) == [2]
    assert pivot([first, second], 2) == [2, 0]


def test_pseudo_inverse_and_regression_agree_with_numpy():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 6))
    rows[:, 5] = rows[:, 0] - rows[:, 1]
    matrix = covariance(rows)
    np.testing.assert_allclose(pseudo_inverse(matrix), np.linalg.pinv(matrix.numpy(), rcond=1e-9), atol=1e-8)
    kept, removed = torch.arange(6) < 3, torch.arange(6) >= 3
    centred = rows - rows.mean(0)
    expected = np.linalg.lstsq(centred[:, :3], centred[:, 3:], rcond=None)[0].T
    np.testing.assert_allclose(regress(matrix, removed, kept), expected, atol=1e-5)


def test_the_share_of_some_channels_is_what_a_regression_on_them_explains():
    rows = torch.randn(400, 6, dtype=torch.float64) @ torch.randn(6, 9, dtype=torch.float64)  # nine channels, six dimensions
    rows = rows - rows.mean(0)
    for some in ([0], [0, 4], [1, 3, 5, 7]):
        mask = torch.zeros(9, dtype=torch.bool)
        mask[some] = True
        left = rows - rows[:, some] @ torch.linalg.lstsq(rows[:, some], rows).solution
        explained = 1 - float(left.square().sum() / rows.square().sum())
        assert 0.1 < explained < 0.99
        assert explained_fraction(rows.T @ rows / 399, mask) == pytest.approx(explained)
    assert explained_fraction(rows.T @ rows / 399, torch.ones(9, dtype=torch.bool)) == pytest.approx(1)
    assert explained_fraction(torch.zeros(3, 3), torch.tensor([True, False, False])) == 1
    assert explained_fraction(rows.T @ rows / 399, torch.zeros(9, dtype=torch.bool)) == 0


def test_a_spectrum_tells_what_it_is_asked():
    spectrum = analyze_residual(torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])), torch.zeros(4, dtype=torch.bool))
    told = spectrum.summarize()
    assert told["filters"] == [0, 1, 2, 3, 4]
    assert told["explained"] == pytest.approx([0, 0.4, 0.7, 0.9, 1])
    assert told["needed"]["0.7"] == 2
    assert told["needed"]["0.85"] == 3
    assert told["needed"]["0.999"] == 4
    many = analyze_residual(torch.eye(500), torch.zeros(500, dtype=torch.bool)).summarize(points=20)
    assert len(many["filters"]) <= 21
    assert (many["filters"][0], many["filters"][-1]) == (0, 500)


def test_a_regression_on_channels_that_depend_on_each_other_is_finite_and_exact():
    """Moments in float32 can have slightly negative eigenvalues."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(3, 9, dtype=torch.float64, generator=generator)
    rows = torch.randn(200, 3, dtype=torch.float64, generator=generator) @ factors
    second = rows.T @ rows / 200
    second -= 1e-5 * second.diagonal().mean() * torch.eye(9, dtype=torch.float64)
    kept = torch.arange(9) < 6
    matrix = regress(second, ~kept, kept)
    torch.testing.assert_close(rows[:, kept] @ matrix.T, rows[:, ~kept], atol=0.02, rtol=0.02)
