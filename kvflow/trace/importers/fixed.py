"""Fixed prompts: what the sessions of one agent and model begin with, seen or unseen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kvflow.trace.importers.conversation import Conversation, Part, unseen_part


class FixedPrompts:
    """Fixed prompts of a file, kept alike from one session to the next.

    A source may count a system prompt, or tool schemas, that it does not show. Of every agent and model, the unseen
    part is as long as in the session so far in which it was shortest: what the count of a first prompt leaves when its
    visible texts are estimated. Texts that are seen have the tokens of the first session that shows them.
    """

    def __init__(self) -> None:
        self._unseen: dict[Hashable, int] = {}
        self._seen: dict[Hashable, int] = {}

    def open(
        self,
        conversation: Conversation,
        key: tuple[str, ...],
        fixed: Sequence[Part],
        others: int,
        counted: int | None,
        *,
        complete: bool = False,
    ) -> int | None:
        """Put an agent's fixed prompt in front of its first prompt.

        Args:
            key: the agent and model; whoever has an equal one has an equal fixed prompt.
            fixed: its texts, as far as they are seen.
            others: estimate of everything after them, in tokens.
            counted: length of the first prompt, if it is known.
            complete: everything is seen; what the count leaves belongs to the texts.

        Returns:
            Its length in tokens; None if it is not known.
        """
        estimated = sum(part.estimate for part in fixed)
        share = min(1.0, counted / max(1, estimated + others)) if counted else 1.0
        for part in reversed(fixed):
            part.tokens = self._seen.setdefault((*key, part.name), max(1, int(part.estimate * share)))
            conversation.put_first(part)
        seen = sum(part.tokens or 0 for part in fixed)
        unseen = self.unseen_tokens(key, counted - seen - others) if counted and not complete else 0
        if unseen:
            conversation.put_first(unseen_part(f"fixed:{'/'.join(key)}", unseen))
        return unseen + seen or None

    def unseen_tokens(self, key: tuple[str, ...], left: int) -> int:
        """Length of the part of a fixed prompt that is not shown, given what a first prompt leaves for it."""
        tokens = self._unseen[key] = min(max(0, left), self._unseen.get(key, max(0, left)))
        return tokens
