"""What reuse cannot do: servers and requests that are refused by name."""

from __future__ import annotations

from typing import Any

from kvflow.errors import ReuseUnsupportedError


def of_server(server_args: Any) -> None:
    """Refuse servers in which it would go wrong.

    Raises:
        ReuseUnsupportedError: names the first thing found.
    """
    refusals = (
        (server_args.speculative_algorithm is not None, "speculative decoding"),
        (bool(server_args.lora_paths) or bool(server_args.enable_lora), "LoRA adapters"),
        (bool(getattr(server_args, "enable_return_hidden_states", False)), "--enable-return-hidden-states"),
        (getattr(server_args, "return_hidden_states_mode", None) is not None, "--return-hidden-states-mode"),
        (bool(getattr(server_args, "enable_return_aux_hidden_states", False)), "--enable-return-aux-hidden-states"),
        (getattr(server_args, "enable_return_routed_experts", False), "--enable-return-routed-experts"),
        (getattr(server_args, "enable_watermark", False), "--enable-watermark"),
        (getattr(server_args, "dcp_size", 1) > 1, "--dcp-size > 1"),
        (getattr(server_args, "attn_cp_size", 1) > 1, "--attn-cp-size > 1"),
        (bool(getattr(server_args, "enable_prefill_cp", False)), "--enable-prefill-cp"),
        (getattr(server_args, "moe_a2a_backend", None) not in (None, "none"), "--moe-a2a-backend"),
        (getattr(server_args, "moe_dense_tp_size", None) is not None, "--moe-dense-tp-size"),
        (getattr(server_args, "dllm_algorithm", None) is not None, "--dllm-algorithm"),
    )
    for refused, found in refusals:
        if refused:
            raise ReuseUnsupportedError(found)


def of_request(req: Any) -> str:
    """Why a request cannot be spliced; empty if it can."""
    reasons = (
        (req.return_logprob and 0 <= req.logprob_start_len < len(req.origin_input_ids), "logprobs of the prompt"),
        (bool(req.return_hidden_states), "hidden states"),
        (req.multimodal_inputs is not None, "multimodal inputs"),
        (req.input_embeds is not None or req.positional_embed_overrides is not None, "embeddings as input"),
        (req.session is not None, "a session, which would keep it"),
        # What becomes of it is shown to nobody, so that it could be neither learned from nor checked.
        (bool(getattr(req, "skip_radix_cache_insert", False)), "kept from the prefix cache, as in beam search"),
    )
    return next((reason for found, reason in reasons if found), "")
