"""Token trees of speculative decoding: building, verifying and reconstructing them.

Shapes use B for requests in the batch and N for the nodes of a request's tree (the draft tokens SGLang
verifies at once; node 0 is the last token already committed). A tree is stored in three [B, N] tensors:

* retrieve_index[b, i]         the node's place in the flattened batch, b * N + i;
* retrieve_next_token[b, i]    the first child of node i, or -1;
* retrieve_next_sibling[b, i]  the next child of node i's parent, or -1.

Trees have a handful of nodes, so plain Python over lists is both the clearest and the fastest way here:
indexing tensors element by element would cost microseconds each time.
"""

from __future__ import annotations

import torch
from torch import Tensor

# sglang.kernels.ops.speculative.spec_tree.TreeMaskMode.QLEN_ONLY: the mask covers the N draft tokens only.
# It is the one layout the CPU engine asks for, and the one `extend_attention_cpu` reads.
QLEN_ONLY = 1


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int | None]:
    """The parent node of each node; None for the root and for a node whose parent was not selected.

    selected holds the N-1 chosen candidates, numbered through all draft steps; candidate c was expanded
    from group c // topk, whose own candidate number parent_list tells. Group 0 hangs off the root.
    """
    node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
    parents: list[int | None] = [None]
    for candidate in selected:
        group = candidate // topk
        parents.append(0 if group == 0 else node_of.get(parent_list[group]))
    return parents


def _path_to_root(node: int | None, parents: list[int | None], limit: int) -> list[int]:
    """The node and its ancestors below the root, at most `limit` of them."""
    path: list[int] = []
    while node is not None and node != 0 and len(path) < limit:
        path.append(node)
        node = parents[node]
    return path


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Turn the drafted candidates into trees, their attention mask and their positions.

    parent_list:       [B, topk * (depth - 1) + 1], the candidate each group of topk was expanded from.
    selected_index:    [B, N - 1], the candidates that became nodes 1..N-1, ascending.
    verified_seq_len:  [B], tokens already committed.
    tree_mask:         [B * N * N] bool or longer (a reused buffer), written: may node i look at node j?
    positions:         [B * N], written: committed tokens plus the node's depth.
    retrieve_*:        [B, N], written; next_token and next_sibling come in filled with -1.
    """
    if int(tree_mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"tree mask mode {tree_mask_mode!r}: the rig only builds QLEN_ONLY masks")
    batch, nodes = verified_seq_len.numel(), draft_token_num
    masks = tree_mask[: batch * nodes * nodes].view(batch, nodes, nodes)
    place = positions.view(batch, nodes)
    for b, committed in enumerate(verified_seq_len.tolist()):
        parents = _parents(selected_index[b].tolist(), parent_list[b].tolist(), topk)
        first_child, next_sibling = [-1] * nodes, [-1] * nodes
        # From the last node to the first: each new child is put in front of its later siblings.
        for node in range(nodes - 1, 0, -1):
            parent = parents[node]
            if parent is not None:
                next_sibling[node], first_child[parent] = first_child[parent], node
        paths = [_path_to_root(node, parents, depth) for node in range(nodes)]

        retrieve_index[b] = torch.arange(b * nodes, (b + 1) * nodes)
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(next_sibling)
        place[b] = torch.tensor([committed + len(path) for path in paths])
        masks[b] = False
        masks[b, :, 0] = True
        for node, path in enumerate(paths):
            masks[b, node, path] = True


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the target's own greedy choices and record how far the draft agreed.

    SGLang passes everything by keyword, with the native library's spelling ("retrive").

    predicts:          [B * N], written: the target's token at every accepted node.
    accept_index:      [B, steps + 1], written from the front with the accepted nodes' flat places; the rest
                       stays as it came (-1).
    accept_token_num:  [B], written: accepted draft tokens, node 0 not counted.
    candidates:        [B, N], the drafted tokens.
    target_predict:    [B, N], the target's greedy token after each node.
    """
    targets = target_predict.reshape(-1).tolist()
    drafted, flat = candidates.tolist(), retrive_index.tolist()
    first_child, next_sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for b in range(candidates.shape[0]):
        node = 0
        accepted = [flat[b][0]]
        while len(accepted) < accept_index.shape[1]:
            wanted = targets[accepted[-1]]
            node = first_child[b][node]
            while node != -1 and drafted[b][node] != wanted:
                node = next_sibling[b][node]
            if node == -1:
                break
            accepted.append(flat[b][node])
        # The last accepted node's prediction is the bonus token, so `predicts` covers it as well.
        for index in accepted:
            predicts[index] = targets[index]
        accept_index[b, : len(accepted)] = torch.tensor(accepted)
        accept_token_num[b] = len(accepted) - 1


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Recover the trees from their attention mask alone (NGRAM speculation drafts masks, not parents).

    tree_mask:         [B * N * N], row i marks node i's ancestors and itself.
    verified_seq_len:  [B], tokens already committed.
    positions, retrieve_*: [B * N] or [B, N], written as `build_tree_kernel_efficient_cpu` writes them.
    """
    nodes = range(draft_token_num)
    visible = tree_mask.reshape(batch_size, draft_token_num, draft_token_num).tolist()
    place, index, next_token, sibling = (
        tensor.view(batch_size, draft_token_num)
        for tensor in (positions, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    )
    for b, committed in enumerate(verified_seq_len.tolist()):
        ancestors = [[j for j in range(i) if visible[b][i][j]] for i in nodes]
        parents = [max(above, default=-1) for above in ancestors]
        place[b] = torch.tensor([committed + len(above) for above in ancestors])
        index[b] = torch.arange(b * draft_token_num, (b + 1) * draft_token_num)
        next_token[b] = torch.tensor([next((k for k in nodes if node in ancestors[k]), -1) for node in nodes])
        sibling[b] = torch.tensor(
            [next((k for k in nodes if k > node and parents[k] == parents[node] >= 0), -1) for node in nodes]
        )
