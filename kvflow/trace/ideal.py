"""The best any prefix cache could do on a trace: one that never forgets."""

from __future__ import annotations

from kvflow.trace.schema import LLMCall, Piece


class _Node:
    """A place in the tree of all contexts so far.

    Attributes:
        tokens: from the root to here.
        edges: further contexts, by content and offset of their next token.
    """

    __slots__ = ("above", "edges", "key", "tokens")

    def __init__(self, above: _Node | None, key: tuple[str, int], tokens: int) -> None:
        self.above = above
        self.key = key
        self.tokens = tokens
        self.edges: dict[tuple[str, int], _Node] = {}


class IdealCache:
    """A radix tree over contents that holds the context of every call it is shown, prompts and answers.

    Cost: memory for the pieces of the trace, as far as they differ; nothing is ever dropped.
    """

    def __init__(self) -> None:
        self._root = _Node(None, ("", 0), 0)
        self._ends: dict[str, dict[str, _Node]] = {}

    def hit_tokens(self, call: LLMCall) -> int:
        """Tokens of a call's prompt that are there already; from now on all of its context is."""
        ends = self._ends.setdefault(call.workflow, {})
        base = ends.get(call.prompt.base) if call.prompt.base is not None else None
        node = self._root if base is None else self._up_to(base, call.prompt.keep_tokens)
        hit, missed = node.tokens, False
        for piece in call.prompt.add:
            node, common = self._add(node, piece)
            if not missed:
                hit += common
                missed = common < piece.tokens
        if call.output_tokens:
            node, _ = self._add(node, Piece(call.output, call.output_tokens))
        ends[call.call] = node
        return hit

    def end(self, workflow: str) -> None:
        """Nothing of this workflow will be referred to again. Its contexts stay."""
        self._ends.pop(workflow, None)

    def _up_to(self, node: _Node, tokens: int) -> _Node:
        below, tokens = node, min(tokens, node.tokens)
        while node.above is not None and node.tokens > tokens:
            below, node = node, node.above
        return node if node.tokens >= tokens else self._split(node, below, tokens - node.tokens)

    def _add(self, node: _Node, piece: Piece) -> tuple[_Node, int]:
        """Go on with a piece; returns where that leads, and how many of its tokens were known."""
        content, tokens, offset = piece.content, piece.tokens, piece.offset
        common = 0
        while common < tokens:
            key = (content, offset + common)
            below = node.edges.get(key)
            if below is None:
                end = _Node(node, key, node.tokens + tokens - common)
                node.edges[key] = end
                return end, common
            length = below.tokens - node.tokens
            if length > tokens - common:
                below = self._split(node, below, tokens - common)
                length = tokens - common
            node = below
            common += length
        return node, common

    def _split(self, above: _Node, below: _Node, tokens: int) -> _Node:
        middle = _Node(above, below.key, above.tokens + tokens)
        above.edges[below.key] = middle
        content, offset = below.key
        below.key = (content, offset + tokens)
        below.above = middle
        middle.edges[below.key] = below
        return middle
