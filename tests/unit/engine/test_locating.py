"""Texts of a prompt that a request asks to have reused: which of them are looked for, and at what cost."""

from __future__ import annotations

from kvflow.hints import Segments
from kvflow.patches.locating import find_slots

TEXT = "".join(map(chr, range(1_000, 3_000)))


class Characters:
    """A tokenizer whose tokens are characters, which counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.asked.append(text)
        return [ord(character) for character in text]


def test_parts_of_a_prompt_that_overlap_are_not_all_tokenized() -> None:
    tokenizer = Characters()
    ranges = [{"start": start, "end": start + 1_000, "name": str(start)} for start in range(200, 456)]
    ranges[100:100] = [{"start": 0, "end": 200, "name": "before"}, {"start": 1_200, "end": 10_000, "name": "behind"}]
    asked = Segments.model_validate({"ranges": ranges[:256]})
    slots = find_slots(asked, lambda: [ord(each) for each in TEXT], tokenizer, text=TEXT)
    assert slots == [(0, 200, "before"), (200, 1_200, "200"), (1_200, 2_000, "behind")]
    assert sum(map(len, tokenizer.asked)) == len(TEXT)


def test_the_same_characters_of_several_messages_are_several_texts() -> None:
    tokenizer = Characters()
    messages = [("user", TEXT[:100]), ("user", TEXT[100:200])]
    ranges = [{"message": 0, "start": 20, "end": 60}, {"message": 1, "start": 20, "end": 60}, {"message": 1}]
    ranges += [{"message": 0, "start": 60, "end": 100}, {"message": 7}, {"message": 0, "start": 100, "end": 120}]
    prompt = [ord(each) for each in TEXT[:200]]
    slots = find_slots(Segments.model_validate({"ranges": ranges}), lambda: prompt, tokenizer, messages=messages)
    assert [slot[:2] for slot in slots] == [(20, 60), (60, 100), (120, 160)]
    assert len(tokenizer.asked) == 3
