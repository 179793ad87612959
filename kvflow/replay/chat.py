"""Prompts as a model's own chat template writes them, with words of its vocabulary, in the recorded lengths."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from kvflow.errors import ConfigError
from kvflow.replay.contents import Contents
from kvflow.trace import Piece

_WORDS = 4096
_PLACES = ("the system's words", "the user's words", "the assistant's words", "the user's next words")


@dataclass(frozen=True, slots=True)
class Markup:
    """What a chat template puts around messages, as token ids.

    Attributes:
        opening: before the system's message.
        first: between it and the user's.
        ask: behind a user's message, before the answer.
        again: behind the answer, before the user's next message.
    """

    opening: array[int]
    first: array[int]
    ask: array[int]
    again: array[int]


class ChatContents(Contents):
    """Contents as words of a tokenizer, and prompts as messages.

    The first piece of a prompt is the system's message, what follows the user's; what is added to a context that was
    answered is the user's next message. The template's markup takes the place of tokens of the messages, so that
    lengths and what prompts share stay as recorded.

    Args:
        tokenizer: of the model, as ``transformers`` gives it.

    Raises:
        ConfigError: it has no chat template, or no words.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._ids = _words(tokenizer)
        self._markup = _markup(tokenizer)

    def prompt(self, base: array[int], pieces: Sequence[Piece]) -> array[int]:
        """Continue a context by a user's message, or begin one."""
        markup = self._markup
        added = super().prompt(array("q"), pieces)
        if base:
            _put(added, 0, markup.again)
        elif pieces:
            _put(added, 0, markup.opening)
            _put(added, pieces[0].tokens if len(pieces) > 1 else len(markup.opening), markup.first)
        _put(added, len(added) - len(markup.ask), markup.ask)
        return base + added


@lru_cache(maxsize=1)
def chat_contents(model: str) -> ChatContents:
    """Contents for a model's folder or name.

    Raises:
        ConfigError: there is no tokenizer that could be used.
    """
    from kvflow.patches.cpu import declare_torchvision_ops

    try:
        declare_torchvision_ops()
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(f"--prompts chat needs the model's tokenizer, and {model} gives none: {error}") from None
    return ChatContents(tokenizer)


def _put(tokens: array[int], start: int, markup: array[int]) -> None:
    """Put markup in the place of tokens, if there are enough of them."""
    if 0 <= start <= len(tokens) - len(markup):
        tokens[start : start + len(markup)] = markup


def _words(tokenizer: Any) -> list[int]:
    """Tokens that are words, in a fixed random order; single letters where the vocabulary has no words."""
    order = sorted(tokenizer.get_vocab().values())
    random.Random(0).shuffle(order)
    for is_word in (_is_word, str.isalpha):
        found = list(islice((token for token in order if _stands(tokenizer, token, is_word)), _WORDS))
        if len(found) > 1:
            return found
    raise ConfigError("--prompts chat: the model's vocabulary has no words")


def _is_word(text: str) -> bool:
    return text.startswith(" ") and len(text) > 2 and text[1:].isascii() and text[1:].isalpha()


def _stands(tokenizer: Any, token: int, is_word: Any) -> bool:
    text = tokenizer.decode([token])
    return text.isascii() and is_word(text) and tokenizer.encode(text, add_special_tokens=False) == [token]


def _markup(tokenizer: Any) -> Markup:
    """Find the markup by rendering a conversation whose messages are known."""
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": place} for role, place in zip(roles, _PLACES, strict=True)]
    try:
        rest = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs: they raise what they like
        raise ConfigError(f"--prompts chat: the model's chat template cannot be used: {error}") from None
    between: list[array[int]] = []
    for place in _PLACES:
        before, found, rest = rest.partition(place)
        if not found:
            raise ConfigError("--prompts chat: the model's chat template changes messages")
        between.append(array("q", tokenizer.encode(before, add_special_tokens=False)))
    opening, first, _, again = between
    return Markup(opening, first, array("q", tokenizer.encode(rest, add_special_tokens=False)), again)
