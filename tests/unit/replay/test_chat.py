"""Prompts through a chat template: the template's markup, the model's words, the recorded lengths."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvflow.errors import ConfigError
from kvflow.patches.cpu import tokenizer
from kvflow.replay.chat import ChatContents, chat_contents
from kvflow.trace import Piece

pytest.importorskip("transformers")

SYSTEM, TASK = Piece("system", 120), Piece("task", 90)


class Tokenizer:
    """A vocabulary of whole words behind ChatML."""

    words = ("<s>", "<e>", " alpha", " beta", " gamma", " delta", ",", "\n", "é")

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[index] for index in ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        found = []
        while text:
            index = next(index for index, word in enumerate(self.words) if text.startswith(word))
            found.append(index)
            text = text[len(self.words[index]) :]
        return found

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return "".join(f"<s>{message['content']}<e>" for message in messages) + "<s>"


@pytest.fixture
def contents(tmp_path: Path) -> ChatContents:
    tokenizer.write_tokenizer(tmp_path, max_position=4096)
    return chat_contents(str(tmp_path))


def text_of(tokens: Sequence[int]) -> str:
    special = dict(enumerate(tokenizer.SPECIAL_TOKENS, start=tokenizer.BYTES))
    return "".join(special.get(token) or chr(token) for token in tokens)


def test_a_prompt_is_what_the_template_writes(contents: ChatContents) -> None:
    prompt = contents.prompt(array("q"), (SYSTEM, TASK))
    system, user, ask = text_of(prompt).split("<|im_end|>\n")
    assert len(prompt) == 210
    assert system.startswith("<|im_start|>system\n")
    assert user.startswith("<|im_start|>user\n")
    assert ask == "<|im_start|>assistant\n"
    assert system.removeprefix("<|im_start|>system\n").isalpha()
    assert user.removeprefix("<|im_start|>user\n").isalpha()


def test_a_context_that_was_answered_goes_on(contents: ChatContents) -> None:
    first = contents.prompt(array("q"), (SYSTEM, TASK))
    context = first + contents.tokens(Piece("answer", 20))
    second = contents.prompt(context, (Piece("more", 70),))
    assert second[: len(context)] == context
    assert len(second) == len(context) + 70
    added = text_of(second[len(first) :])
    assert added[20:].startswith("<|im_end|>\n<|im_start|>user\n")
    assert added.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_prompts_share_what_they_shared(contents: ChatContents) -> None:
    one, two = (contents.prompt(array("q"), (SYSTEM, Piece(task, 90))) for task in ("one", "two"))
    assert one[:120] == two[:120]
    assert one[150:180] != two[150:180]


@pytest.mark.parametrize("tokens", [1, 5, 30, 60])
def test_what_is_too_short_for_markup_keeps_its_length(contents: ChatContents, tokens: int) -> None:
    assert len(contents.prompt(array("q"), (Piece("short", tokens),))) == tokens
    assert len(contents.prompt(array("q", [1, 2]), (Piece("short", tokens), Piece("too", tokens)))) == 2 + 2 * tokens


def test_words_are_preferred_to_letters() -> None:
    contents = ChatContents(Tokenizer())
    words = contents.tokens(Piece("any", 200))
    assert {Tokenizer.words[word] for word in words} == {" alpha", " beta", " gamma", " delta"}
    assert list(contents.prompt(array("q"), (Piece("a", 4), Piece("b", 5))))[:1] == [0]


def test_templates_that_cannot_be_used_are_told_of() -> None:
    class Refusing(Tokenizer):
        def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
            raise ValueError("system role not supported")

    class Changing(Tokenizer):
        def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
            return super().apply_chat_template(messages).upper()

    class Wordless(Tokenizer):
        words = ("<s>", "<e>", ",")

    for kind, told in ((Refusing, "system role not supported"), (Changing, "changes messages"), (Wordless, "no words")):
        with pytest.raises(ConfigError, match=told):
            ChatContents(kind())


def test_a_model_without_tokenizer_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        chat_contents(str(tmp_path / "nothing"))
