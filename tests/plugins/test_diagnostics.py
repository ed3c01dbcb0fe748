"""R-hat and effective sample size against ArviZ, and where the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bpcbench_torch import diagnostics


def autoregressive(chains: int, draws: int, rho: float, seed: int, quantities: int = 5) -> np.ndarray:
    """Return stationary AR(1) chains with unit variance, whose effective share is (1 - rho) / (1 + rho)."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(chains, draws, quantities))
    for draw in range(1, draws):
        values[:, draw] = rho * values[:, draw - 1] + np.sqrt(1 - rho**2) * values[:, draw]
    return values


@pytest.fixture(scope="module")
def arviz() -> Any:
    return pytest.importorskip("arviz_stats.base", reason="arviz-stats is not installed").array_stats


def theirs(arviz: Any, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    each = [draws[..., quantity] for quantity in range(draws.shape[-1])]
    rhat = [arviz.rhat(values, chain_axis=0, draw_axis=1, method="rank") for values in each]
    ess = [arviz.ess(values, chain_axis=0, draw_axis=1, method="bulk") for values in each]
    return np.array(rhat), np.array(ess)


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.5, 0.9])
@pytest.mark.parametrize(("chains", "draws"), [(2, 100), (3, 201), (4, 500)])
def test_long_chains_agree_with_arviz_exactly(arviz: Any, chains: int, draws: int, rho: float) -> None:
    values = autoregressive(chains, draws, rho, seed=chains)
    rhat, ess = theirs(arviz, values)
    np.testing.assert_allclose(diagnostics.rhat(values), rhat, rtol=1e-10)
    np.testing.assert_allclose(diagnostics.ess(values), ess, rtol=1e-10)


@pytest.mark.parametrize("draws", [4, 5, 7, 10, 11, 20])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_short_chains_agree_with_arviz(arviz: Any, draws: int, shift: float) -> None:
    values = autoregressive(3, draws, 0.4, seed=draws, quantities=40) + shift * np.arange(3)[:, None, None]
    rhat, ess = theirs(arviz, values)
    np.testing.assert_allclose(diagnostics.rhat(values), rhat, rtol=1e-10)
    # ArviZ adds the last even autocorrelation also if it is negative, when the sum reaches the end of the chain.
    found = diagnostics.ess(values)
    np.testing.assert_allclose(found, ess, rtol=0.06)
    assert np.isclose(found, ess, rtol=1e-10).mean() > 0.8


def test_ties_are_ranked_as_arviz_does(arviz: Any) -> None:
    values = autoregressive(4, 100, 0.3, seed=9).round(0)
    rhat, ess = theirs(arviz, values)
    np.testing.assert_allclose(diagnostics.rhat(values), rhat, rtol=1e-10)
    np.testing.assert_allclose(diagnostics.ess(values), ess, rtol=1e-10)


@pytest.mark.parametrize("rho", [0.0, 0.6, -0.3])
def test_an_autoregression_has_the_size_that_theory_gives_it(rho: float) -> None:
    values = autoregressive(4, 4000, rho, seed=1, quantities=20)
    share = diagnostics.ess(values).mean() / 16000
    assert share == pytest.approx((1 - rho) / (1 + rho), rel=0.05)
    assert np.abs(diagnostics.rhat(values) - 1).max() < 0.01


def test_chains_that_differ_in_place_or_in_spread_are_noticed() -> None:
    values = autoregressive(4, 200, 0.0, seed=2)
    assert diagnostics.rhat(values).max() < 1.02
    apart, wider = values.copy(), values.copy()
    apart[0] += 3
    wider[0] *= 5
    assert diagnostics.rhat(apart).min() > 1.2
    assert diagnostics.rhat(wider).min() > 1.05
    assert diagnostics.ess(apart).max() < 20


def test_a_monotone_change_of_scale_changes_nothing_but_the_folded_part() -> None:
    values = autoregressive(3, 50, 0.5, seed=3)
    np.testing.assert_allclose(diagnostics.ess(np.exp(values)), diagnostics.ess(values), rtol=1e-10)


def test_what_does_not_vary_has_no_diagnostics() -> None:
    values = autoregressive(3, 10, 0.0, seed=4, quantities=2)
    values[..., 1] = 0.25
    assert np.isnan(diagnostics.rhat(values)).tolist() == [False, True]
    assert np.isnan(diagnostics.ess(values)).tolist() == [False, True]


@pytest.mark.parametrize("shape", [(3, 10), (3, 3, 2), (10,)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    for compute in (diagnostics.rhat, diagnostics.ess):
        with pytest.raises(ValueError, match="at least 4 draws"):
            compute(np.zeros(shape))
