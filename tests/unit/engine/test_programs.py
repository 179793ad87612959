"""Programs on the scheduler: whose requests may run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvflow.engine import Coordinator, Journal, Programs, PromptClaim
from kvflow.policy import AdmissionMemory, ProgramAdmission, ServingCosts
from kvflow.policy.admission import Places
from kvflow.predict import ClaimPrediction, WorkflowUpdate
from tests.unit.engine.test_claims import FakeNode

MEMORY = AdmissionMemory(device_tokens=100_000)


class Table:
    """A coordinator and the programs beside it."""

    def __init__(self, costs: ServingCosts | None = None) -> None:
        self.coordinator = Coordinator("cost")
        self.programs = Programs(self.coordinator.claims, ProgramAdmission(costs or ServingCosts()))

    def ask(
        self,
        workflow: str,
        tokens: int = 40_000,
        *,
        agent: str = "a",
        program: str | None = None,
        key: str | None = None,
        digests: Sequence[int] = (),
    ) -> str:
        prediction = ClaimPrediction(agent=agent, steps=0, since_s=self.coordinator.claims.clock.now_s)
        self.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", claims=(prediction,)))
        key = key or workflow
        claim = PromptClaim(workflow_id=workflow, workflow_type="t", agent=agent, program_id=program)
        self.programs.arrived(key, claim, tokens, digests)
        return key

    def start(self, workflow: str, tokens: int) -> None:
        """A program asks, is let in, and computes."""
        self.ask(workflow, tokens)
        assert self.allowed(workflow) == [workflow]
        self.programs.started(workflow)

    def answer(self, key: str, *, due_s: float | None = None, generated_tokens: int = 10) -> None:
        self.programs.left(key, generated_tokens)
        claims = (ClaimPrediction(agent="a", steps=0, due_s=due_s),) if due_s is not None else ()
        self.coordinator.apply(WorkflowUpdate(workflow_id=key, workflow_type="t", claims=claims))

    def end(self, workflow: str) -> None:
        self.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", retired=True))

    def allowed(self, *keys: str) -> list[str]:
        return self.programs.arrange(keys, MEMORY)


def sibling(table: Table, workflow: str, fixed_tokens: int | None = 5_000, *, digest: int | None = None) -> str:
    prediction = ClaimPrediction(agent="a", steps=0, since_s=0.0)
    table.coordinator.apply(WorkflowUpdate(workflow_id=workflow, workflow_type="t", claims=(prediction,)))
    claim = PromptClaim(workflow_id=workflow, workflow_type="t", agent="a", fixed_tokens=fixed_tokens)
    digests = [digest] if digest is not None else []
    table.programs.arrived(workflow, claim, (fixed_tokens or 5_000) + 1_000, digests)
    return workflow


def test_requests_of_programs_that_do_not_fit_wait() -> None:
    table = Table()
    keys = [table.ask(name) for name in "abc"]
    assert table.allowed(*keys) == ["a", "b"]
    assert table.programs.held == 1


def test_short_requests_overtake_long_ones_only_where_not_all_programs_fit() -> None:
    table = Table()
    long, short = table.ask("a"), table.ask("b", 1000)
    assert table.allowed(long, short) == ["a", "b"]
    table.ask("c", 80_000)
    assert table.allowed("a", "b", "c") == ["b", "a"]


def test_there_is_something_to_decide_while_anybody_waits_or_is_put_off() -> None:
    table = Table()
    assert table.programs.at_rest
    keys = [table.ask(name) for name in "abc"]
    table.allowed(*keys)
    for started in "ab":
        table.programs.started(started)
    assert not table.programs.at_rest
    table.programs.left("c", 0)  # aborted in the queue
    assert not table.programs.at_rest  # contexts are still put off on its account
    table.allowed()
    assert table.programs.at_rest
    table.programs.retracted("a")
    assert not table.programs.at_rest


class Counted(ProgramAdmission):
    """Counts decisions."""

    decisions = 0

    def admit(self, *arguments: Any, **options: Any) -> Places:
        self.decisions += 1
        return super().admit(*arguments, **options)


def test_nothing_is_decided_while_the_room_to_spare_holds_what_comes() -> None:
    table = Table()
    admission = Counted(ServingCosts())
    table.programs = Programs(table.coordinator.claims, admission)
    table.start("a", 1000)
    for _ in range(10):
        table.answer("a", due_s=1.0)
        table.start("a", 1000)
    assert admission.decisions == 1
    table.start("b", 1000)
    assert admission.decisions == 2, "nobody knows what a new workflow will need"
    table.answer("a", due_s=1.0)
    table.start("a", 1000)
    table.coordinator.tick(2.0)
    table.answer("a", due_s=1.0)
    table.start("a", 1000)
    assert admission.decisions == 3, "it looks again now and then"


def test_when_what_comes_may_use_up_the_room_to_spare_it_is_decided_who_runs() -> None:
    table = Table()
    table.start("a", 40_000)
    table.start("b", 30_000)
    table.answer("b", due_s=1.0)
    keys = [table.ask("b", 70_000)]
    assert table.allowed(*keys) == [], "with the growth of one of them they no longer fit"


def test_answers_to_come_use_up_the_room_to_spare() -> None:
    table = Table()
    admission = Counted(ServingCosts())
    table.programs = Programs(table.coordinator.claims, admission)
    names = [f"w{number}" for number in range(12)]
    for name in names:
        table.start(name, 1000)
        table.answer(name, due_s=1.0, generated_tokens=9000)
    table.coordinator.tick(2.0)
    before = admission.decisions
    for name in names[:9]:
        table.start(name, 1000)
    assert admission.decisions == before + 1
    for name in names[9:]:
        table.start(name, 1000)
    assert admission.decisions > before + 1, "twelve prompts with their answers take more than there is"


def test_the_next_program_begins_when_one_has_ended() -> None:
    table = Table()
    keys = [table.ask(name) for name in "abc"]
    table.allowed(*keys)
    table.programs.started("a")
    table.answer("a")
    table.end("a")
    assert table.allowed("b", "c") == ["b", "c"]
    assert table.programs.under_way == 2


def test_a_sub_workflow_is_part_of_its_program() -> None:
    table = Table()
    table.ask("a", 10_000)
    table.ask("b", 80_000)
    table.allowed("a", "b")
    assert table.programs.under_way == 2
    table.ask("a/1", 10_000, program="a")
    assert table.programs.under_way == 2
    assert table.allowed("a", "b", "a/1") == ["a", "a/1"]


def test_requests_without_a_claim_are_never_held() -> None:
    table = Table()
    keys = [table.ask(name) for name in "abc"]
    assert table.allowed("x", *keys, "y") == ["x", "a", "b", "y"]


def test_a_workflow_nobody_has_announced_is_a_program_as_long_as_it_asks() -> None:
    table = Table()
    claim = PromptClaim(workflow_id="w", workflow_type="t", agent="a")
    table.programs.arrived(1, claim, 1000)
    assert table.programs.arrange([1], MEMORY) == [1]
    table.programs.left(1, 10)
    assert table.programs.arrange([], MEMORY) == []
    assert table.programs.under_way == 0


def test_every_retraction_teaches_that_less_fits() -> None:
    table = Table()
    keys = [table.ask(name, 47_000) for name in "ab"]
    assert table.allowed(*keys) == ["a", "b"]
    for second in range(5):
        for key in keys:
            table.programs.started(key)
        table.coordinator.tick(second + 1.0)
        table.programs.retracted("b")
    table.programs.left("b", 10)
    table.end("b")
    assert table.allowed(table.ask("c", 47_000)) == []


@pytest.mark.parametrize(("evicted", "fit"), [(False, ["a", "b"]), (True, ["a"])])
def test_contexts_loaded_for_who_has_a_place_teach_that_less_fits(evicted: bool, fit: list[str]) -> None:
    table = Table(ServingCosts(load_token_s=1e-3))
    for second in range(5):
        table.start("a", 47_000)
        claim = (table.coordinator.claims.of("a") or {})["a"]
        claim.tip = FakeNode(key=range(47_000), parent=FakeNode(), evicted=evicted, backuped=True)
        claim.context_tokens = claim.tail_tokens = 47_000
        table.answer("a", due_s=second + 1.0)
        table.coordinator.tick(second + 1.0)
    assert table.allowed(table.ask("a", 47_000), table.ask("b", 47_000)) == fit


def test_a_request_that_comes_back_to_the_queue_is_the_same_request() -> None:
    table = Table()
    keys = [table.ask(name) for name in "ab"]
    table.allowed(*keys)
    table.programs.started("a")
    table.programs.retracted("a")
    table.programs.arrived("a", PromptClaim(workflow_id="a", workflow_type="t", agent="a"), 40_000)
    assert table.allowed("a", "b") == ["a", "b"]
    assert table.programs.held == 0


def test_strangers_may_leave() -> None:
    table = Table()
    table.programs.left("nobody", 1)
    table.programs.started("nobody")


def test_the_journal_hears_who_is_held_and_how_long() -> None:
    table = Table()
    claims = table.coordinator.claims
    journal = Journal(claims.clock, 10)
    table.programs = Programs(claims, ProgramAdmission(ServingCosts()), journal)
    for name in "abc":
        table.ask(name, 40_000)
    table.allowed("a", "b", "c")
    held = [(entry["event"], entry["owners"][0][0]) for entry in journal.read()]
    assert held == [("held back", "c")]
    table.coordinator.tick(7.0)
    table.programs.started("a")
    table.answer("a")
    table.end("a")
    table.allowed("b", "c")
    entry = journal.read("c")[-1]
    assert (entry["event"], entry["reason"]) == ("let in", "after 7.00 s")
    assert entry["seconds"] == pytest.approx(7.0)


def test_the_journal_names_the_sub_workflows_whose_requests_are_held() -> None:
    table = Table()
    claims = table.coordinator.claims
    journal = Journal(claims.clock, 10)
    table.programs = Programs(claims, ProgramAdmission(ServingCosts()), journal)
    table.start("first", 60_000)
    table.ask("sub", 60_000, program="main")
    assert table.allowed("sub") == []
    (entry,) = journal.read("sub")
    assert (entry["event"], entry["owners"]) == ("held back", (("main", ""), ("sub", "")))


def test_with_many_programs_decisions_pause_unless_nothing_runs() -> None:
    table = Table()
    names = [table.ask(f"p{number}", 20) for number in range(1000)]
    table.allowed(*names)
    table.programs.started(names[0])
    late = table.ask("late", 20)
    assert table.allowed(late) == []
    table.coordinator.tick(0.1)
    assert table.allowed(late) == [late]
    table.programs.left(names[0], 10)
    later = table.ask("later", 20)
    assert table.allowed(later) == [later]


def test_contexts_of_who_is_held_are_wanted_later_than_those_of_who_runs() -> None:
    table = Table()
    keys = [table.ask(name, 60_000) for name in "ab"]
    assert table.allowed(*keys) == ["a"]
    [runs], [held] = ((table.coordinator.claims.of(name) or {}).values() for name in "ab")
    clock = table.coordinator.claims.clock
    assert held.next_s(clock) > runs.next_s(clock) + 1.0
    table.programs.started("a")
    table.answer("a")
    table.end("a")
    assert table.allowed("b") == ["b"]
    assert held.held_s == 0


def test_when_nobody_waits_any_more_no_use_is_put_off() -> None:
    table = Table()
    table.allowed(*[table.ask(name, 60_000) for name in "ab"])
    [held] = (table.coordinator.claims.of("b") or {}).values()
    assert held.held_s > 0
    table.programs.left("b", 0)
    assert table.allowed() == []
    assert held.held_s == 0


def test_a_fixed_prompt_counts_once_for_all_programs_of_a_type() -> None:
    table = Table()
    keys = [table.ask(name, 40_000) for name in "abc"]
    assert table.allowed(*keys) == ["a", "b"]
    table.coordinator.claims.role("t", "a").prompt.tokens = 30_000
    for name in "abc":
        claim = (table.coordinator.claims.of(name) or {})["a"]
        claim.context_tokens, claim.tail_tokens = 40_000, 10_000
    table.programs.started("a")
    table.answer("a", due_s=1.0)
    table.coordinator.claims.clock.now_s += 0.25
    assert table.allowed("b", "c") == ["b", "c"]


def test_prompts_of_one_role_that_begin_differently_do_not_share_their_room() -> None:
    table = Table()
    keys = [sibling(table, name, 40_000, digest=digest) for name, digest in (("a", 1), ("b", 2), ("c", 1), ("d", 3))]
    assert table.allowed(*keys) == ["a", "b"]
    assert table.programs.held == 1, "c brings only its own part, and waits for a to compute the rest"


def test_what_fixed_prompts_begin_with_counts_once_where_the_tree_holds_it() -> None:
    table = Table()
    keys = [sibling(table, name, 40_000, digest=digest) for name, digest in (("a", 1), ("b", 2), ("c", 3))]
    assert table.allowed(*keys) == ["a", "b"], "81,000 and 3,000 tokens, as far as is known"
    common = FakeNode(key=range(30_000), parent=FakeNode())
    for digest in (1, 2, 3):
        prompt = table.coordinator.claims.role("t", "a").prompt_of(digest)
        prompt.tip = FakeNode(key=range(10_000), parent=common)
    table.answer(keys[0], due_s=1.0)
    table.coordinator.claims.clock.now_s += 0.25
    assert table.allowed(*keys[1:]) == ["b", "c"], "60,000 and 3,000 tokens"


def test_fixed_prompts_that_a_program_will_hardly_use_or_only_much_later_take_no_room() -> None:
    def let_in(probability: float, due_s: float) -> list[str]:
        table = Table()
        table.start("a", 50_000)
        table.ask("b", 10_000)
        claims = (
            ClaimPrediction(agent="a", steps=0, since_s=0.0),
            ClaimPrediction(agent="expert", steps=3, probability=probability, due_s=due_s),
        )
        table.coordinator.claims.role("t", "expert").prompt.tokens = 60_000
        table.coordinator.apply(WorkflowUpdate(workflow_id="b", workflow_type="t", claims=claims))
        return table.allowed("b")

    assert let_in(probability=0.9, due_s=5.0) == []
    assert let_in(probability=0.1, due_s=5.0) == ["b"]
    assert let_in(probability=0.9, due_s=500.0) == ["b"]


@pytest.mark.parametrize("clock_s", [0.0, 1e6], ids=["the clock starts", "it has run for long"])
def test_how_long_programs_take_tells_who_is_overdue(clock_s: float) -> None:
    def let_in(took_s: float) -> list[str]:
        table = Table()
        table.coordinator.tick(clock_s)
        table.start("ended", 60_000)
        table.coordinator.tick(clock_s + took_s)
        table.answer("ended")
        table.end("ended")
        table.start("a", 60_000)
        table.ask("large", 70_000)
        table.allowed("large")
        table.coordinator.tick(clock_s + took_s + 60.0)
        table.ask("small", 10_000)
        return table.allowed("large", "small")

    assert let_in(took_s=100.0) == ["small"]
    assert let_in(took_s=5.0) == [], "the large one has waited long enough for others to let it go first"


def test_a_program_keeps_its_place_however_long_others_wait_for_theirs() -> None:
    table = Table()
    keys = [table.ask("a", 60_000), table.ask("works", 20_000), table.ask("b", 60_000)]
    assert sorted(table.allowed(*keys)) == ["a", "works"]
    table.programs.started("works")
    claim = (table.coordinator.claims.of("a") or {})["a"]
    claim.context_tokens = claim.tail_tokens = 60_000
    table.coordinator.claims.clock.queue_s = 1_000.0
    table.answer("a", due_s=0.5)
    assert table.allowed("b") == []
