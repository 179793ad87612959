"""How long messages are whose content is a list of parts."""

from __future__ import annotations

from typing import Any

import pytest

from kvflow.trace.messages import MEDIA_TOKENS, MessagePart, prompt_parts

DATA = "iVBORw0KGgo" * 20_000
TEXT = "x" * 350


def message(*parts: dict[str, Any]) -> MessagePart:
    (found,) = prompt_parts({"messages": [{"role": "user", "content": list(parts)}]})
    return found


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {"data": DATA}}]},
    ],
)
def test_an_image_or_a_sound_is_as_long_as_models_take_it_for(part: dict[str, Any]) -> None:
    assert message({"type": "text", "text": TEXT}, part).tokens == 100 + MEDIA_TOKENS


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": TEXT, "cache_control": {"type": "ephemeral"}},
        {"type": "input_text", "text": TEXT},
        {"type": "thinking", "thinking": TEXT, "signature": DATA},
        {"type": "tool_result", "tool_use_id": "1", "content": TEXT},
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": TEXT}]},
    ],
)
def test_a_text_among_parts_is_as_long_as_it_is_alone(part: dict[str, Any]) -> None:
    assert message(part).tokens == 100


def test_a_tool_call_is_as_long_as_what_it_is_called_with() -> None:
    assert message({"type": "tool_use", "id": "1", "name": "write", "input": {"text": TEXT}}).tokens == 105


@pytest.mark.parametrize("part", [{"type": "novel", "data": TEXT}, {"type": ["text"]}, {"type": "text", "text": 3}, 7])
def test_what_is_not_known_is_as_long_as_it_is_written(part: Any) -> None:
    assert message(part).tokens == max(1, round(len(str(part)) / 3.5))


def test_messages_with_different_images_are_different() -> None:
    one, other = (message({"type": "image_url", "image_url": {"url": f"data:{data}"}}) for data in (DATA, DATA + "a"))
    assert one.tokens == other.tokens
    assert one.name != other.name
