"""What the schedulers' measurements make of the costs that were set."""

from __future__ import annotations

import pytest

from kvflow import config
from kvflow.patches.learning import learned_costs

pytestmark = [pytest.mark.engine, pytest.mark.beside]

SET = config.Costs(prefill_token_s=1e-5, attention_token_s=0.0, prefill_step_s=1e-3, decode_step_s=2e-3)
NOTHING = {"load_token_s": None, "prefill_factor": None, "decode_factor": None}


def test_nothing_is_learned_before_anything_is_measured() -> None:
    assert learned_costs([NOTHING, NOTHING], SET) == {}


def test_replicas_are_averaged_and_those_without_a_measurement_left_out() -> None:
    waits = [NOTHING | {"prefill_factor": 2.0, "load_token_s": 3e-6}, NOTHING | {"prefill_factor": 4.0}, NOTHING]
    learned = learned_costs(waits, SET)
    assert learned == pytest.approx(
        {"load_token_s": 3e-6, "prefill_token_s": 3e-5, "attention_token_s": 0.0, "prefill_step_s": 3e-3}
    )


def test_decoding_has_a_factor_of_its_own() -> None:
    learned = learned_costs([NOTHING | {"decode_factor": 0.5}], SET)
    assert learned["decode_step_s"] == 1e-3
    assert learned.keys() == {"decode_step_s", "decode_sequence_s", "decode_context_token_s"}


def test_loads_are_not_learned_where_that_is_off() -> None:
    waits = [NOTHING | {"load_token_s": 3e-6}]
    assert learned_costs(waits, SET.model_copy(update={"learn_loads": False})) == {}
