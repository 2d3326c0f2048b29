"""Attention over SGLang's paged KV cache: what its `intel_amx` backend calls.

SGLang's other CPU backend, `torch_native`, has no speculative verify and computes wrong tokens for MLA
prefill, hence these. Shapes use T for the batch's tokens, H and G for query and KV heads, D and E for the
width of a key and of a value (they differ for MLA), S for cache slots and B for requests.

The signatures are the native ones, passed by position. The rig's models need no logit cap, sliding
window, cross attention, attention sinks or quantized cache: those arguments are refused rather than ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def _refuse(**unsupported: bool) -> None:
    """Raise for features that would otherwise be left out of the result without a word."""
    asked_for = [name for name, asked in unsupported.items() if asked]
    if asked_for:
        raise NotImplementedError(f"the rig's attention does not do: {', '.join(asked_for)}")


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """One request's attention: query [q, H, D], key [k, G, D], value [k, G, E], mask [q, k] -> [q, H, E]."""
    result = scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        key.transpose(0, 1).unsqueeze(0),
        value.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return result.squeeze(0).transpose(0, 1)


def _extend_mask(prefix: int, new: int, tree: Tensor | None, causal: bool) -> Tensor | None:
    """What each of `new` tokens may see: the whole prefix, and the new ones by tree or in causal order."""
    if tree is not None:
        return torch.cat([torch.ones(new, prefix, dtype=torch.bool), tree.bool()], dim=1)
    if not causal or new == 1:
        return None
    return torch.arange(prefix + new) <= torch.arange(prefix, prefix + new).unsqueeze(1)


def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window_size: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Store one new token per request in the cache and let it attend to all that is stored.

    query: [B, H, D]. k_buffer: [S, G, D]. v_buffer: [S, G, E]. output: [B, H, E], written.
    key, value: the new tokens' entries, or None where the caller has stored them. loc: [B], their slots.
    attn_logits: the native kernel's scratch space. seq_lens: [B], the new token counted.
    """
    _refuse(
        logit_cap=logit_cap > 0,
        cross_attention=is_cross_attn,
        sliding_window=sliding_window_size > 0,
        sinks=sinks is not None,
        quantized_cache=k_scale != 1.0 or v_scale != 1.0,
    )
    if key is not None and value is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        # MLA keeps one latent per token: its value buffer is a view into the key buffer, already written.
        if v_buffer.data_ptr() != k_buffer.data_ptr():
            v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for b, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, :length].long()
        output[b : b + 1] = _attend(query[b : b + 1], k_buffer[slots], v_buffer[slots], sm_scale, None)


def extend_attention_cpu(
    q_extend: Tensor,
    k_extend: Tensor | None,
    v_extend: Tensor | None,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool = False,
    sliding_window_size: int = 0,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Let several new tokens per request attend to the cached prefix and to each other.

    This serves prefill, chunked prefill and the verification of draft tokens.

    q_extend: [T, H, D]. k_extend, v_extend: [T, G * D], [T, G * E] or with the heads apart; None where the
    cache already holds them. o_extend: [T, H, E], written. k_buffer: [S, G, D]. v_buffer: [S, G, E].
    seq_lens: [B], prefix and new tokens. extend_seq_lens: [B], new tokens. extend_start_loc: [B], where in T
    they start. tree_mask: one n * n block per request for its n new tokens, flattened one after the other.
    """
    _refuse(
        logit_cap=logit_cap > 0,
        cross_attention=is_cross_attn,
        sliding_window=sliding_window_size > 0,
        sinks=sinks is not None,
        quantized_cache=k_scale != 1.0 or v_scale != 1.0,
    )
    lengths = (tensor.tolist() for tensor in (req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc))
    tree_offset = 0
    for row, total, new, start in zip(*lengths, strict=True):
        prefix = total - new
        tokens = slice(start, start + new)
        if k_extend is None or v_extend is None:
            slots = req_to_token[row, :total].long()
            key, value = k_buffer[slots], v_buffer[slots]
        else:
            # New tokens are read from the arguments, not from the cache: MLA's un-absorbed prefill brings
            # full per-head keys here while the cache holds the latent. (It never comes with a prefix.)
            key = k_extend[tokens].reshape(new, -1, q_extend.shape[-1])
            value = v_extend[tokens].reshape(new, -1, o_extend.shape[-1])
            if prefix:
                slots = req_to_token[row, :prefix].long()
                key = torch.cat([k_buffer[slots], key])
                value = torch.cat([v_buffer[slots], value])
        tree = None
        if tree_mask is not None:
            tree = tree_mask[tree_offset : tree_offset + new * new].view(new, new)
            tree_offset += new * new
        mask = _extend_mask(prefix, new, tree, is_causal)
        o_extend[tokens] = _attend(q_extend[tokens], key, value, sm_scale, mask)
