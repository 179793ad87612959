"""Prompts of a scheduler's batches: which are planned, what is checked of them, and what ranks have to agree on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvflow.config import Settings
from kvflow.patches import claim, splicer
from kvflow.patches.splicer import Splicer
from kvflow.reuse import KV, Difference, Plan, QualityGate, Rotary
from kvflow.reuse.gate import Door
from tests.unit.reuse.toy import ANGLES, QUESTION, ROLE, TEXT, Text, prefill, words

SERVER = {"speculative_algorithm": None, "lora_paths": None, "enable_lora": False}
OTHERS = [words(seed, 80) for seed in (30, 31, 32)]


class Ranks:
    """Ranks on threads: each waits for what the others say."""

    def __init__(self, size: int) -> None:
        self.told: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def tell(self, rank: int, what: str, numbers: list[float]) -> list[list[float]]:
        self.told[rank] = (what, numbers)
        self._barrier.wait(5)
        told = list(self.told)
        self._barrier.wait(5)
        assert len({(kind, len(each)) for kind, each in told}) == 1, "ranks wait for different things"
        return [each for _, each in told]


class FakeSplicing:
    """The part of a forward pass that needs a model: does nothing, and reads what :mod:`toy`'s has computed."""

    repaired_tokens = 0

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.pool = self
        self.device = torch.device("cpu")
        self.kv = KV(torch.zeros(0), torch.zeros(0))
        self.starts: list[int] = []
        self._ranks, self._rank = ranks, rank

    def read(self, row: int, start: int, end: int) -> KV:
        part = self.kv.span(start, end)
        return KV(part.keys.clone(), part.values.clone())

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        told = self._ranks.tell(self._rank, "total", vector.tolist())
        return torch.tensor(told, dtype=vector.dtype).sum(dim=0)

    def least(self, numbers: Sequence[int]) -> list[int]:
        return [int(min(each)) for each in zip(*self._ranks.tell(self._rank, "least", list(numbers)), strict=True)]

    def put(self, row: int, chunk: Any, fill: Any, repair_share: float, *, trial: bool = False) -> Any:
        self.starts.append(chunk.grafts[0].start)
        return [fill(graft) for graft in chunk.grafts]

    def compute(self, batch: Any, spliced: Any) -> Any:
        told = self._ranks.tell(self._rank, "compute", [any(spliced)])
        return batch if all(one for (one,) in told) else None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Splicer]]:
    """Make the splicers of so many ranks."""
    rotary = Rotary(torch.cat((ANGLES.cos(), ANGLES.sin()), dim=1).float(), neox=True)
    monkeypatch.setattr(splicer, "rotary_of", lambda runner: rotary)
    monkeypatch.setattr(splicer, "_replica", lambda: None)
    monkeypatch.setattr(splicer, "_cpu_group", lambda: "ranks")

    def make(size: int = 1, mode: str = "rotate") -> list[Splicer]:
        ranks = Ranks(size)
        settings = Settings.model_validate({"reuse": {"mode": mode, "min_tokens": 32}})
        args = SimpleNamespace(**SERVER, tp_size=size)
        journal = SimpleNamespace(reused=lambda *_: None)
        found: list[Splicer] = []
        for rank in range(size):
            monkeypatch.setattr(splicer, "Splicing", lambda *_, rank=rank: FakeSplicing(ranks, rank))
            worker = SimpleNamespace(model_runner=None)
            tree = SimpleNamespace(journal=journal)
            found.append(Splicer(SimpleNamespace(tp_worker=worker, server_args=args, tree_cache=tree), settings))
        return found

    return make


def request(agent: str, text: Text, *, role: Text = ROLE, extra_key: str | None = None, **asked: Any) -> Any:
    """A scheduler's request about a text, behind a role and before a question."""
    slots = [(len(role), len(role) + len(text), "document")]
    asked = {"slots": slots, "namespace": "", "workflow_type": "review", "agent": agent} | asked
    actions = claim.attach({}, None, reuse=asked)["actions"]
    tokens = role + text + QUESTION
    return SimpleNamespace(
        kv_hints=SimpleNamespace(actions=[SimpleNamespace(**action) for action in actions]),
        rid=f"{agent} {len(text)}",
        origin_input_ids=tokens,
        full_untruncated_fill_ids=tokens,
        output_ids=[1, 2, 3],
        extra_key=extra_key,
        cache_salt=None,
        return_logprob=False,
        return_hidden_states=False,
        multimodal_inputs=None,
        input_embeds=None,
        positional_embed_overrides=None,
        session=None,
        retraction_count=0,
        kv=SimpleNamespace(req_pool_idx=0),
        finished=lambda: True,
    )


def batch(req: Any, cached_tokens: int = 0, **fields: Any) -> Any:
    mode = SimpleNamespace(is_extend_without_speculative=lambda: True)
    return SimpleNamespace(
        forward_mode=mode,
        reqs=[req],
        prefix_lens=[cached_tokens],
        extend_lens=[len(req.origin_input_ids) - cached_tokens],
        req_pool_indices_cpu=torch.tensor([0]),
        hicache_consumer_index=-1,
        **fields,
    )


WORKER = SimpleNamespace(set_hicache_consumer=lambda index: None)


def serve(one: Splicer, req: Any, *, cached_tokens: int = 0, **fields: Any) -> Plan | None:
    """Have a request computed and answered, as far as its splicer sees; returns its plan."""
    one.forward(lambda worker, made, *_: None, WORKER, batch(req, cached_tokens, **fields))
    state = getattr(req, "_kvflow_splice", None)
    plan = state and state.plan
    splicing: Any = one._splicing
    splicing.kv = prefill(req.origin_input_ids)
    one.computed(req, len(req.origin_input_ids))
    return plan


@pytest.mark.parametrize("field", ["input_embeds", "replace_embeds"])
def test_batches_with_embeddings_by_place_are_left_alone(made: Callable[..., list[Splicer]], field: str) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    assert serve(one, request("critic", TEXT), **{field: torch.zeros(1, 8)}) is None
    plan = serve(one, request("critic", TEXT), input_embeds=None, replace_embeds=None)
    assert plan is not None
    assert plan.grafts


def test_into_a_copy_no_more_is_put_than_into_the_prompt(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    plan = serve(one, request("critic", TEXT, role=words(40, 30)), cached_tokens=50)
    assert plan is not None
    assert [(graft.start, graft.end) for graft in plan.grafts] == [(50, 94)]
    exact, spliced = one.checks.due()
    copy = request(text=TEXT, role=words(40, 30), **spliced["asked"])
    copied = serve(one, copy)
    assert copied is not None
    assert [(graft.start, graft.end) for graft in copied.grafts] == [(50, 94)]
    assert "exact_tokens" not in exact["asked"]


def test_a_copy_of_a_prompt_that_was_computed_has_all_put_in(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    gate: QualityGate = one.reuse.gate
    gate.door(("", "review", "document"))
    gate.close(("", "review", "document"))
    while gate.door(("", "review", "document")) is not Door.TRIAL:
        pass
    plan = serve(one, request("critic", TEXT, role=words(40, 30)), cached_tokens=50)
    assert plan is not None
    assert plan.grafts == ()
    _, spliced = one.checks.due()
    copied = serve(one, request(text=TEXT, role=words(40, 30), **spliced["asked"]))
    assert copied is not None
    assert [(graft.start, graft.end) for graft in copied.grafts] == [(30, 94)]


def test_a_slot_is_tried_only_where_something_would_be_put_in(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    gate: QualityGate = one.reuse.gate
    gate.door(("", "review", "document"))
    gate.close(("", "review", "document"))
    while gate.door(("", "review", "document")) is not Door.TRIAL:
        pass
    plan = serve(one, request("planner", TEXT))
    assert plan is not None
    assert (plan.check, one.checks.due()) == ((), [])
    assert serve(one, request("critic", TEXT)).check == (("", "review", "document"),)  # type: ignore[union-attr]


def test_a_copy_that_nothing_is_put_into_ends_its_check(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    serve(one, request("critic", TEXT))
    exact, spliced = one.checks.due()
    one.reuse.clear()
    serve(one, request("critic", TEXT, **exact["asked"]))
    assert one.checks.under_way == 1
    serve(one, request(text=TEXT, **spliced["asked"]))
    assert one.checks.under_way == one.checks.compared == 0


def test_logits_are_kept_where_sampling_is_put_off(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    serve(one, request("critic", TEXT))
    logits = torch.randn(1, 8)
    output = SimpleNamespace(next_token_logits=logits)
    for offer in one.checks.due():
        copy = request(**({"agent": "critic"} | offer["asked"]), text=TEXT)
        late = SimpleNamespace(delay_sample_func=lambda: None, logits_output=output)
        one.forward(lambda worker, made, *_, late=late: late, WORKER, batch(copy))
        one.computed(copy, len(copy.origin_input_ids))
    assert one.checks.compared == 1


def test_a_copy_whose_logits_cannot_be_kept_is_answered_all_the_same(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    serve(one, request("critic", TEXT))
    exact, _ = one.checks.due()
    copy = request(**({"agent": "critic"} | exact["asked"]), text=TEXT)
    none = torch.zeros(0, 8)  # as if there were no room for them
    assert one.forward(lambda *_: one.before_sampling(none) or "answer", WORKER, batch(copy)) == "answer"


def test_copies_are_compared_by_what_follows_their_prompts_not_by_what_is_decoded_then(
    made: Callable[..., list[Splicer]],
) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    serve(one, request("critic", TEXT))
    exact, _ = one.checks.due()
    copy = request(**({"agent": "critic"} | exact["asked"]), text=TEXT)
    tokens = len(copy.origin_input_ids)
    seen: list[bool] = []
    one.forward(lambda *_: seen.append(one.samples), WORKER, batch(copy))
    mixed = batch(copy)  # it decodes beside the prompt of another, before it is known to be over
    mixed.prefix_lens, mixed.extend_lens = [tokens], [1]
    one.forward(lambda *_: seen.append(one.samples), WORKER, mixed)
    assert seen == [True, False]


def test_a_copy_into_which_nothing_could_be_put_passes_no_check(
    made: Callable[..., list[Splicer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    serve(one, request("critic", TEXT))
    _, spliced = one.checks.due()
    assert one.checks.under_way == 1
    monkeypatch.setattr(one._splicing, "compute", lambda batch, spliced: None)  # another rank has failed
    serve(one, request(text=TEXT, **spliced["asked"]))
    assert one.checks.under_way == one.checks.compared == 0


def test_what_a_request_was_made_of_may_be_forgotten_while_it_decodes(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    (segment,) = one.reuse.segments._segments
    text = weakref.ref(segment.kv.keys)
    del segment
    req = request("critic", TEXT)
    req.finished = lambda: False
    plan = serve(one, req)
    assert plan is not None
    assert plan.grafts
    del plan
    one.reuse.clear()
    assert text() is None
    req.kv.cache_protected_len = 0
    assert one.publishable(req, len(req.origin_input_ids)) == len(ROLE), "and what was put in stays its own"


def test_copies_of_one_owner_share_no_prefix_with_those_of_another(made: Callable[..., list[Splicer]]) -> None:
    (one,) = made()
    serve(one, request("planner", TEXT))
    keys: list[str] = []
    for owner in (None, "a", "b"):
        serve(one, request("critic", TEXT, extra_key=owner))
        exact, spliced = one.checks.due()
        assert exact["extra_key"] == owner
        keys.append(spliced["extra_key"])
    assert len({*keys, "a", "b"}) == 5


def together(ranks: list[Splicer], *arguments: Any, **named: Any) -> list[Any]:
    """Have all ranks serve the same request; returns what each put in."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        plans = list(pool.map(lambda one: serve(one, request(*arguments, **named)), ranks))
    return [plan and [(graft.start, graft.end, len(graft.anchors)) for graft in plan.grafts] for plan in plans]


def failing(monkeypatch: pytest.MonkeyPatch, one: Splicer, name: str, times: int) -> None:
    """Have a method of what one rank remembers fail for a while."""
    right, left = getattr(one.reuse, name), [times]

    def method(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError
        return right(*arguments)

    monkeypatch.setattr(one.reuse, name, method)


def test_what_one_rank_could_not_learn_all_forget(
    made: Callable[..., list[Splicer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = made(2, "kvcomm")
    for text in OTHERS[:2]:
        together(ranks, "planner", text)
        together(ranks, "critic", text)
    one, two = together(ranks, "critic", OTHERS[0])
    assert one == two
    assert one, "served from an example"
    failing(monkeypatch, ranks[1], "computed", 1)
    together(ranks, "planner", OTHERS[2])
    together(ranks, "critic", OTHERS[0])  # all forget what they know
    assert [len(each.reuse.segments) for each in ranks] == [1, 1]
    assert [each.checks.under_way for each in ranks] == [0, 0]
    plans = [together(ranks, "critic", OTHERS[0]) for _ in range(3)]
    assert all(one == two for one, two in plans)
    assert plans[-1][0], "and learn again"


@pytest.mark.parametrize("name", ["computed", "fill"])
def test_ranks_give_up_together(made: Callable[..., list[Splicer]], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ranks = made(2)
    failing(monkeypatch, ranks[1], name, 1000)
    plans = [together(ranks, "planner", OTHERS[0], role=words(50, 20)) for _ in range(30)]
    assert all(one == two for one, two in plans)
    assert plans[-1] == [None, None], "nothing is planned any more"


def test_a_rank_that_cannot_put_in_forgets_nothing(
    made: Callable[..., list[Splicer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = made(2)
    together(ranks, "planner", OTHERS[0])
    failing(monkeypatch, ranks[1], "fill", 1)
    for _ in range(2):
        one, two = together(ranks, "critic", OTHERS[0])
        assert one == two == [(len(ROLE), len(ROLE) + 80, 0)]
    assert [len(each.reuse.segments) for each in ranks] == [1, 1]


def test_ranks_judge_alike_after_one_could_not(
    made: Callable[..., list[Splicer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = made(2)
    together(ranks, "planner", OTHERS[0])
    slot = ("", "review", "document")
    for _ in range(3):
        ranks[0].reuse.gate.judge(slot, Difference(agrees=False, kl=9.0))
    failing(monkeypatch, ranks[1], "computed", 1)  # as the check's result did
    together(ranks, "critic", OTHERS[0])
    one, two = together(ranks, "critic", OTHERS[0])
    assert one == two
    assert ranks[0].reuse.gate.report() == ranks[1].reuse.gate.report()
