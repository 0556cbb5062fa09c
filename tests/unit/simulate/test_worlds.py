"""What worlds say of jobs side by side."""

from __future__ import annotations

import numpy as np
import pytest

from rmixer.interference import Sharing, Station, solve
from rmixer.simulate.network import station_rates


@pytest.mark.parametrize(("capacity", "gamma", "overhead"), [(1, 1, 0), (1.7, 0.4, 0.05)])
def test_the_equation_in_one_unknown_is_the_network(
    capacity: float, gamma: float, overhead: float
) -> None:
    """Newton on the sum of the queues finds the fixed point that damped iteration finds."""
    random = np.random.default_rng(7)
    demand, grain = random.uniform(0, 1, (60, 6)), random.uniform(0.1, 10, (60, 6))
    keys = {"capacity": capacity, "gamma": gamma, "overhead": overhead}
    station = Station(name="compute", capacity=capacity, gamma=gamma)
    other = solve(
        demand[..., None], grain[..., None], Sharing(stations=(station,), overhead=overhead)
    )
    assert station_rates(demand, grain, **keys) == pytest.approx(other, abs=1e-5)
    demand[:, 4:] = -1.0  # empty places count for nothing
    fewer = station_rates(demand[:, :4], grain[:, :4], **keys)
    assert station_rates(demand, grain, **keys)[:, :4] == pytest.approx(fewer, abs=1e-9)
