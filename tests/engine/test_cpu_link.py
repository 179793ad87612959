"""The pretended link: its settings and its pace."""

from __future__ import annotations

import pytest

from kvflow.errors import ConfigError
from kvflow.patches.cpu.link import Link, LinkSettings

MEGABYTE = 1_000_000


class Clock:
    """Time that passes only when someone sleeps, and then a little longer than asked."""

    def __init__(self, oversleep_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.oversleep_s = oversleep_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds + self.oversleep_s


def make_link(clock: Clock, **settings: float) -> Link:
    return Link(settings=LinkSettings(**settings), clock=clock, sleep=clock.sleep)


def send(link: Link, clock: Clock, *, opens_submission: bool = False, submitted_s: float | None = None) -> None:
    submitted_s = clock() if submitted_s is None else submitted_s
    link.occupy(lambda: MEGABYTE, submitted_s=submitted_s, opens_submission=opens_submission)


def test_a_copy_takes_bytes_over_bandwidth() -> None:
    clock = Clock()
    send(make_link(clock, bytes_per_s=2 * MEGABYTE), clock)
    assert clock() == pytest.approx(100.5)


def test_oversleeping_does_not_add_up_over_queued_copies() -> None:
    clock = Clock(oversleep_s=0.003)
    link = make_link(clock, bytes_per_s=100 * MEGABYTE)
    for _ in range(1000):
        send(link, clock, submitted_s=100.0)
    assert clock() == pytest.approx(110.0, abs=0.004)


def test_a_copy_submitted_to_an_idle_link_starts_when_submitted() -> None:
    clock = Clock()
    link = make_link(clock, bytes_per_s=MEGABYTE)
    send(link, clock)
    clock.now_s += 50
    send(link, clock)
    assert clock() == pytest.approx(152.0)


def test_latency_is_paid_once_a_submission() -> None:
    clock = Clock()
    link = make_link(clock, latency_s=0.25)
    send(link, clock, opens_submission=True)
    send(link, clock)
    send(link, clock, opens_submission=True)
    assert clock() == pytest.approx(100.5)


def test_without_settings_nothing_sleeps() -> None:
    clock = Clock()
    link = make_link(clock)
    send(link, clock, opens_submission=True)
    assert clock() == 100.0
    assert (link.statistics().copied_bytes, link.statistics().copies) == (MEGABYTE, 1)


def test_time_spent_waiting_is_not_transfer_time() -> None:
    clock = Clock()
    link = make_link(clock, bytes_per_s=MEGABYTE)
    submitted_s = clock()
    clock.now_s += 30  # the stream waited for something
    link.not_before_now()
    send(link, clock, submitted_s=submitted_s)
    assert clock() == pytest.approx(131.0)


def test_settings_come_from_the_environment() -> None:
    read = LinkSettings.from_environment
    assert read({}) == LinkSettings()
    assert read({"KVFLOW_CPU_LINK_BYTES_PER_S": "2e7", "KVFLOW_CPU_LINK_LATENCY_S": " 0.01 "}) == LinkSettings(
        bytes_per_s=2e7, latency_s=0.01
    )


@pytest.mark.parametrize("text", ["fast", "-1", "nan", "inf"])
def test_a_bad_bandwidth_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="KVFLOW_CPU_LINK_BYTES_PER_S"):
        LinkSettings.from_environment({"KVFLOW_CPU_LINK_BYTES_PER_S": text})
