"""Rearranging token ids between the draft's and the target's view of a request.

Shapes use B for the number of requests in the batch. All functions write into the tensors they are given,
as the native ones do, because SGLang reads the results from those buffers.
"""

from __future__ import annotations

from torch import Tensor


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Pick each request's last accepted token, the "bonus" the target itself predicted.

    accept_tokens: [B * accept_stride], each request's accepted tokens at the front of its row.
    accept_lens:   [B], how many are accepted, the bonus token included (so at least 1).
    bonus_tokens:  [B], written.
    """
    rows = accept_tokens.reshape(-1, accept_stride)
    last = (accept_lens.long() - 1).unsqueeze(1)
    bonus_tokens.copy_(rows.gather(1, last).squeeze(1))


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's tokens one place to the left and append the newly drafted one.

    A draft head sees the token *after* the one its hidden state belongs to, hence the shift by one.

    input_ids:        [total tokens], written. Request b owns extend_seq_lens[b] from extend_start_loc[b].
    topk_index:       [B, 1], the token to append.
    select_index:     [B] or None, where in input_ids to put it instead of the request's last place.
    """
    appended = topk_index.reshape(-1)
    spans = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    for request, (start, length) in enumerate(spans):
        if length <= 0:
            continue
        end = start + length
        # Source and destination overlap, so the source is copied first.
        input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
        place = end - 1 if select_index is None else int(select_index[request])
        input_ids[place] = appended[request]
