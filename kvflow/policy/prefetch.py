"""When to load a context back before anybody asks for it, and how much of the link that may take."""

from __future__ import annotations

from kvflow.policy.costs import ServingCosts

_LEAD = 2.0
"""Loading begins this many times its own duration before the expected use, because predictions are not exact."""
_LEAST_LEAD_S = 0.5
"""And no later than this: what the schedulers know of the time can be a tick old."""
_NEXT_STEP_S = 10.0
"""What the next step needs is loaded this early: when a step ends is known least of all."""
_BURST_S = 0.5
"""Link time that can be saved up."""
_WASTE = 0.1
"""What may be wasted, of what was used."""
_UNKNOWN = 0.25
"""What of open loads counts as wasted, at least, until as much as the allowance has been used or wasted."""
_ALLOWANCE = 1 / 16
"""What may be wasted to begin with, of the device's size."""
_WASTED_LINK = 0.001
"""What may be wasted besides, of the link's time: so that predictions can prove to have become better."""
_SEEN_TOKENS = 1 << 20
"""How far back the share of wasted loads looks, about."""


class PrefetchPace:
    """Says when a context's next use is near, and how much may be loaded ahead.

    Two limits. Of the link's time, a share. And of mistakes, a budget: an allowance to begin with, a tenth of what
    requests have used, and a thousandth of the link's time. What has been loaded and not been used yet counts as far
    as such loads have been wasted lately, and a quarter of it at least while little is known. No more is owed than the
    allowance. So predictions that are wrong load next to nothing, whatever they are wrong about, and right ones are not
    held up by those.

    Source: the lead is KVFlow's (arXiv 2507.07400, section 4.3: while the predecessor runs), in seconds. The budget is
    ours; it is the guard's for evictions, applied to loads.

    Args:
        costs: how long loads take.
        link_share: share of the link's time, at most.
        device_tokens: size of the device; a sixteenth of it is the allowance.
    """

    def __init__(self, costs: ServingCosts, link_share: float, device_tokens: int) -> None:
        self.costs = costs
        self._link_share = link_share
        self._left_s = _BURST_S
        self._now_s: float | None = None
        self._most_tokens = self._budget_tokens = _ALLOWANCE * device_tokens
        self._open_tokens = 0
        self._used_tokens = self._wasted_tokens = 0.0

    @property
    def wasted_share(self) -> float:
        """Share of the tokens loaded ahead that have been wasted lately; a tenth as long as little is known."""
        seen = self._used_tokens + self._wasted_tokens + self._most_tokens
        return (self._wasted_tokens + _WASTE * self._most_tokens) / seen

    @property
    def link_free(self) -> bool:
        """Whether there is link time for another load."""
        return self._left_s > 0

    @property
    def may_load(self) -> bool:
        """Whether both limits allow another load that is predicted to be of use."""
        known = self._used_tokens + self._wasted_tokens >= self._most_tokens
        share = self.wasted_share if known else max(self.wasted_share, _UNKNOWN)
        return self.link_free and self._budget_tokens > share * self._open_tokens

    def near(self, next_s: float, steps: float | None, tokens: int) -> bool:
        """Whether a use is so near that its context should be loaded now.

        Args:
            next_s: seconds until the use.
            steps: steps-to-execution; None if the graph does not say.
            tokens: what there is to load.
        """
        least_s = _NEXT_STEP_S if steps is not None and 0 < steps <= 1 else _LEAST_LEAD_S
        return next_s <= max(least_s, _LEAD * self.costs.load_s(tokens))

    def tick(self, now_s: float) -> None:
        """Take over the time."""
        if self._now_s is not None and now_s > self._now_s:
            passed_s = now_s - self._now_s
            self._left_s = min(_BURST_S, self._left_s + passed_s * self._link_share)
            if self.costs.load_token_s:
                self._earn(passed_s * _WASTED_LINK / self.costs.load_token_s)
        self._now_s = now_s if self._now_s is None else max(self._now_s, now_s)

    def loaded(self, tokens: int, *, ordered: bool = False) -> None:
        """Take note of a load that begins; one that was ordered is no prediction, and cannot be a mistake."""
        self._left_s -= self.costs.load_s(tokens)
        self._open_tokens += 0 if ordered else tokens

    def used(self, tokens: int) -> None:
        """A request has used part of what was loaded."""
        self._settle(tokens)
        self._used_tokens += tokens
        self._earn(_WASTE * tokens)

    def wasted(self, tokens: int) -> None:
        """Part of what was loaded has left the device unused."""
        self._settle(tokens)
        self._wasted_tokens += tokens
        self._budget_tokens = max(-self._most_tokens, self._budget_tokens - tokens)

    def missed(self, tokens: int) -> None:
        """Part of what was to be loaded did not come: nothing was wasted."""
        self._open_tokens = max(0, self._open_tokens - tokens)

    def flushed(self) -> None:
        """The cache is empty: what was loaded will neither be used nor wasted."""
        self._open_tokens = 0

    def _settle(self, tokens: int) -> None:
        self._open_tokens = max(0, self._open_tokens - tokens)
        if self._used_tokens + self._wasted_tokens > _SEEN_TOKENS:
            self._used_tokens /= 2
            self._wasted_tokens /= 2

    def _earn(self, tokens: float) -> None:
        self._budget_tokens = min(self._most_tokens, self._budget_tokens + tokens)
