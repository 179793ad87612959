"""How many programs should run at a time."""

from __future__ import annotations

import pytest

from kvflow.policy import AdmissionMemory, ServingCosts, Step
from kvflow.policy.throughput import best_share, steps_per_second

COSTS = ServingCosts()
STEP = Step(prompt_tokens=10_000, new_tokens=500, generated_tokens=100)
NO_HOST = AdmissionMemory(device_tokens=100_000)
ROOMY_HOST = AdmissionMemory(device_tokens=100_000, host_tokens=1_000_000)


def test_all_run_if_all_fit() -> None:
    assert best_share(9, 90_000, NO_HOST, STEP, COSTS) == 1


def test_what_fits_runs_if_the_rest_would_have_to_be_computed_again() -> None:
    assert best_share(30, 300_000, NO_HOST, STEP, COSTS) == pytest.approx(1 / 3)


def test_more_run_if_a_host_tier_brings_their_contexts_back_meanwhile() -> None:
    agents = Step(prompt_tokens=2_000, new_tokens=500, generated_tokens=100)
    assert best_share(30, 300_000, ROOMY_HOST, agents, COSTS) > best_share(30, 300_000, NO_HOST, agents, COSTS)


def test_not_more_than_the_link_can_serve() -> None:
    agents = Step(prompt_tokens=2_000, new_tokens=500, generated_tokens=100)
    slow = ServingCosts(load_token_s=1e-3)
    assert best_share(30, 300_000, ROOMY_HOST, agents, slow) < 0.5


def test_nobody_waits_whose_context_the_host_keeps_if_that_makes_nobody_slower() -> None:
    host = AdmissionMemory(device_tokens=100_000, host_tokens=200_000)
    fast, slow = ServingCosts(load_token_s=1e-9), ServingCosts(load_token_s=1e-3)
    assert best_share(30, 300_000, host, STEP, fast) == pytest.approx(2 / 3)
    assert best_share(30, 300_000, host, STEP, slow) == pytest.approx(1 / 3, abs=0.05)


def test_of_those_alike_the_fewest_run_where_loads_are_dear() -> None:
    host = AdmissionMemory(device_tokens=100_000, host_tokens=200_000)
    agents = Step(prompt_tokens=4_000, new_tokens=3_000, generated_tokens=10)
    dear = ServingCosts(load_token_s=0.5 * COSTS.prefill_token_s)
    rates = [steps_per_second(30 * share, 300_000 * share, host, agents, dear) for share in (1 / 3, 2 / 3)]
    assert rates[1] == pytest.approx(rates[0], rel=0.03)
    assert best_share(30, 300_000, host, agents, dear) == pytest.approx(1 / 3, abs=0.05)
    cheap = ServingCosts(load_token_s=0.1 * COSTS.prefill_token_s)
    assert best_share(30, 300_000, host, agents, cheap) == pytest.approx(2 / 3)


def test_more_run_where_tools_leave_the_device_alone() -> None:
    slow_tools = Step(prompt_tokens=10_000, new_tokens=500, generated_tokens=100, pause_s=600)
    assert best_share(30, 300_000, NO_HOST, slow_tools, COSTS) == 1


def test_a_step_takes_no_less_than_its_own_time() -> None:
    alone_s = COSTS.compute_s(9_500, 10_000) + COSTS.decode_s(100, 1, 10_000)
    assert steps_per_second(1, 10_000, NO_HOST, STEP, COSTS) == pytest.approx(1 / alone_s)


def test_rates_are_finite_before_anything_is_known() -> None:
    assert best_share(4, 160_000, NO_HOST, Step(), COSTS) >= 100_000 / 160_000


@pytest.mark.parametrize("programs", [1, 3, 31, 33, 1000])
def test_a_share_is_of_whole_programs_or_what_fits(programs: int) -> None:
    share = best_share(programs, programs * 40_000, ROOMY_HOST, STEP, COSTS)
    assert share == min(1, 100_000 / (programs * 40_000)) or (share * programs) == pytest.approx(
        round(share * programs)
    )
