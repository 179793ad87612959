"""Making a server answer what a trace says it answered, so that prompts that continue the answer find it cached.

The class below runs inside SGLang's scheduler (``--enable-custom-logit-processor``), which has to be able to import
kvflow; kvflow need not be enabled there.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

FLAG = "--enable-custom-logit-processor"
_TOKENS = "tokens"


class ForcedAnswer:
    """A custom logit processor of SGLang: only the next token of the recorded answer remains possible.

    Which one that is follows from how much of the request has its KV when the forward pass runs. ``output_ids`` would
    not say: with overlap scheduling they are a token behind, and after a chunk of a prefill nothing is answered yet.
    """

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
        """Overwrite logits, shape [batch, vocabulary]."""
        for row, params in enumerate(custom_param_list or []):
            req = params["__req__"]
            index = req.kv.kv_committed_len - len(req.origin_input_ids)
            if 0 <= index < len(params[_TOKENS]):
                logits[row].fill_(-1e30)
                logits[row, params[_TOKENS][index]] = 0.0
        return logits


def forced(tokens: Sequence[int]) -> dict[str, Any]:
    """Give the fields of a ``/generate`` request that force an answer; its sampling parameters are to be merged."""
    return {
        "custom_logit_processor": json.dumps({"callable": pickle.dumps(ForcedAnswer).hex()}),
        "sampling_params": {"custom_params": {_TOKENS: list(tokens)}},
    }
