"""Book-keeping of KV cache slots during speculative decoding.

`req_to_token` is SGLang's page table: [requests, pool_len], row r holding the cache slot of each of request
r's positions. A batch names its B rows by `req_pool_indices` [B]. All functions but one write into the
tensors they are given, as the native ones do. `pool_len` is the table's row length; the native kernels need
it for pointer arithmetic, torch does not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor


def _spans(rows: Tensor, start: Tensor, end: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Per request: its table row, its slice of that row, its slice of the batch's packed slot list."""
    packed = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        length = last - first
        yield row, slice(first, last), slice(packed, packed + length)
        packed += length


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Enter freshly allocated slots, packed request after request, for positions start..end-1 of each."""
    for row, positions, packed in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, positions] = out_cache_loc[packed].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The reverse: pack the slots of each request's positions start..end-1 into `out_cache_loc`."""
    for row, positions, packed in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[packed] = req_to_token[row, positions].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Pack the topk * num_steps slots that follow each request's committed tokens.

    out_cache_loc: [B * topk * num_steps], written.
    """
    columns = seq_lens.long().unsqueeze(1) + torch.arange(topk * num_steps)
    rows = req_pool_indices.long().unsqueeze(1)
    out_cache_loc.copy_(req_to_token[rows, columns].reshape(-1))


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A page table for the draft in which every one of a request's topk candidates has its own row.

    Candidate k shares the committed prefix and continues in its own num_steps slots, which the table holds
    at offset k * num_steps behind it. Returns [B * topk, pool_len].
    """
    table = req_to_token[req_pool_indices.long()].repeat_interleave(topk, 0).contiguous()
    for b, (row, committed) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for k in range(1, topk):
            own = committed + k * num_steps
            table[b * topk + k, committed : committed + num_steps] = req_to_token[row, own : own + num_steps]
    return table


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots of the accepted draft tokens to the front.

    accept_index: any shape, places in out_cache_loc, -1 where nothing was accepted.
    """
    places = accept_index.reshape(-1)
    places = places[places > -1].long()
    accept_out_cache_loc[: places.numel()] = out_cache_loc[places].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Move cache entries from slots src_loc [n] to slots tgt_loc [n] in every layer's buffers.

    data_ptrs: [buffers], raw addresses, which is all SGLang hands over.
    strides:   [buffers], bytes per slot.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, width in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # Read everything before writing anything: a slot may be both a source and a target.
        entries = [ctypes.string_at(base + source * width, width) for source in sources]
        for target, entry in zip(targets, entries, strict=True):
            ctypes.memmove(base + target * width, entry, width)
