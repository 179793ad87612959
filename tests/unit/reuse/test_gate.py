"""The quality gate: closes where answers change, and opens again where they no longer do."""

from __future__ import annotations

import math

import pytest
import torch

from kvflow.reuse import Difference, QualityGate
from kvflow.reuse.gate import Door

SLOT = ("", "review", "document")
SAME, OTHER = Difference(agrees=True, kl=0.0), Difference(agrees=False, kl=2.0)


def passes(gate: QualityGate, prompts: int) -> list[Door]:
    """Ask for a slot so many times."""
    return [gate.door(SLOT) for _ in range(prompts)]


def spliced(gate: QualityGate, prompts: int) -> list[bool]:
    """Have so many prompts spliced; which of them are checked."""
    return [gate.samples([SLOT]) for _ in range(prompts)]


def closed() -> QualityGate:
    gate = QualityGate()
    gate.door(SLOT)
    assert [gate.judge(SLOT, OTHER) for _ in range(3)] == [False, False, True]
    return gate


def test_a_slot_is_open_until_three_checks_say_otherwise() -> None:
    gate = closed()
    assert gate.door(SLOT) is Door.CLOSED
    assert gate.report()[SLOT]["closed"] == 1


def test_other_slots_stay_open() -> None:
    gate = closed()
    assert gate.door(("", "review", "notes")) is Door.OPEN
    assert gate.door(("write", "document")) is Door.OPEN


UNLIKE = Difference(agrees=False, kl=0.0)


@pytest.mark.parametrize(
    ("agreement", "allowed"), [(0.0, 20), (0.5, 10), (0.85, 3), (0.9, 2), (0.95, 1), (0.99, 1), (1.0, 1)]
)
def test_of_twenty_checks_as_many_may_disagree_as_is_allowed_of_them_and_one_always(
    agreement: float, allowed: int
) -> None:
    gate = QualityGate(agreement=agreement)
    gate.door(SLOT)
    assert not any(gate.judge(SLOT, UNLIKE if check % 20 < allowed else SAME) for check in range(100))
    assert any(gate.judge(SLOT, UNLIKE if check < allowed + 1 else SAME) for check in range(20)) is (allowed < 20)


def test_disagreements_far_apart_are_not_added_up() -> None:
    gate = QualityGate()
    gate.door(SLOT)
    assert not any(gate.judge(SLOT, UNLIKE if check % 10 == 9 else SAME) for check in range(200))
    assert any(gate.judge(SLOT, UNLIKE if check % 5 == 4 else SAME) for check in range(20))


def test_a_slot_that_breaks_after_a_long_time_closes_with_its_third_check() -> None:
    gate = QualityGate()
    gate.door(SLOT)
    assert not any(gate.judge(SLOT, SAME) for _ in range(100))
    assert [gate.judge(SLOT, UNLIKE) for _ in range(3)] == [False, False, True]


def test_large_divergences_close_a_slot_as_soon_as_they_outweigh_the_last_eight() -> None:
    gate = QualityGate(kl=0.2)
    gate.door(SLOT)
    assert not any(gate.judge(SLOT, SAME) for _ in range(100))
    assert [gate.judge(SLOT, Difference(agrees=True, kl=1.5)) for _ in range(4)] == [False, False, False, True]


def test_likeliest_tokens_that_agree_do_not_make_up_for_a_large_divergence() -> None:
    gate = QualityGate(kl=0.2)
    gate.door(SLOT)
    assert any(gate.judge(SLOT, Difference(agrees=True, kl=0.3)) for _ in range(3))


def test_the_first_prompts_are_all_checked_and_then_a_sample() -> None:
    gate = QualityGate(every=8)
    passes(gate, 20)  # prompts in which nothing could be spliced are no uses
    sampled = spliced(gate, 70)
    assert all(sampled[:6])
    assert sum(sampled[6:]) == 8


@pytest.mark.parametrize(("agreement", "checked"), [(0.9, 6 + 4), (0.0, 4)])
def test_after_a_check_that_disagrees_the_next_prompts_are_all_checked(agreement: float, checked: int) -> None:
    gate = QualityGate(agreement=agreement, every=8)
    gate.door(SLOT)
    spliced(gate, 16)
    assert not gate.judge(SLOT, UNLIKE)
    sampled = spliced(gate, 32)
    assert sum(sampled) == checked, "and then a sample again; none of it matters if all may disagree"
    assert all(sampled[:6]) is (agreement > 0)


def test_a_prompt_counts_in_all_of_its_slots() -> None:
    gate, notes = QualityGate(every=8), ("", "review", "notes")
    assert all(gate.samples((SLOT, notes)) for _ in range(6))
    assert not gate.samples((notes,))
    assert not gate.samples((SLOT,))


def test_a_closed_slot_rests_and_is_tried_on_copies() -> None:
    gate = closed()
    doors = passes(gate, 40)
    assert doors[:31] == [Door.CLOSED] * 31
    assert doors[31:] == [Door.TRIAL] * 9
    assert gate.samples([SLOT])


def test_three_good_trials_open_it_and_one_bad_one_doubles_its_rest() -> None:
    gate = closed()
    passes(gate, 32)
    assert gate.judge(SLOT, OTHER)
    doors = passes(gate, 70)
    assert doors.count(Door.CLOSED) == 63
    assert not any(gate.judge(SLOT, SAME) for _ in range(3))
    assert gate.door(SLOT) is Door.OPEN
    assert sum(spliced(gate, 7)) == 6, "watched again at first"


def test_checks_that_come_late_do_not_count_while_it_is_closed() -> None:
    gate = closed()
    assert not gate.judge(SLOT, OTHER)
    assert gate.report()[SLOT]["closed"] == 1


def test_names_from_clients_are_bounded() -> None:
    gate = QualityGate()
    for number in range(5000):
        gate.door(("", "review", str(number)))
    assert len(gate.report()) == 4096
    assert list(gate.report())[-1] == ("", "review", "4999")


@pytest.mark.parametrize("seed", range(3))
def test_a_difference_is_the_divergence_of_the_spliced_from_the_exact(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact, spliced = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    p, q = exact.exp() / exact.exp().sum(), spliced.exp() / spliced.exp().sum()
    wanted = math.fsum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p, q, strict=True))
    assert Difference.between(exact, spliced).kl == pytest.approx(wanted)
    assert Difference.between(exact, exact) == Difference(agrees=True, kl=0.0)
    assert Difference.between(exact, -exact).agrees is False


@pytest.mark.parametrize(("likelihoods", "agrees"), [((0.4, 0.5), True), ((0.3, 0.5), True), ((0.2, 0.5), False)])
def test_tokens_that_are_about_as_likely_may_change_places(likelihoods: tuple[float, float], agrees: bool) -> None:
    exact, spliced = torch.tensor(likelihoods).log(), torch.tensor(likelihoods[::-1]).log()
    assert Difference.between(exact, spliced).agrees is agrees


def test_a_slot_that_applications_complain_of_rests_longer_each_time() -> None:
    gate, rests = QualityGate(), []
    for _ in range(3):
        while gate.door(SLOT) is not Door.OPEN:
            assert not gate.judge(SLOT, SAME)
        gate.close(SLOT)
        rests.append(next(n for n in range(1, 2000) if gate.door(SLOT) is Door.TRIAL))
    assert rests == [64, 128, 256]


def test_one_check_closes_nothing_however_far_it_is_off() -> None:
    gate = QualityGate()
    gate.door(SLOT)
    for number in range(20):
        assert not gate.judge(SLOT, Difference(agrees=number != 2, kl=30.0 if number == 2 else 0.01))
    assert gate.judge(SLOT, Difference(agrees=True, kl=30.0)) is False
    closed = [gate.judge(SLOT, Difference(agrees=True, kl=30.0)) for _ in range(3)]
    assert any(closed), "but several do"


def test_what_cannot_be_compared_does_not_agree() -> None:
    numbers, excluded = torch.zeros(4), torch.tensor([0.0, -torch.inf, 0.0, 0.0])
    for exact, spliced in ((excluded, numbers), (numbers, numbers * torch.nan)):
        found = Difference.between(exact, spliced)
        assert not found.agrees
        assert found.kl > 100
