"""A pure-torch stand-in for SGLang's native CPU kernel library.

The `sgl_kernel` that the package index ships is a CUDA library: without a driver it does not even load.
SGLang's CPU engine nevertheless imports it and calls a dozen of its functions. This package supplies
exactly those, in plain torch, and takes the native library's place by coming first on PYTHONPATH.

Three kinds of name are served:

* functions SGLang imports from here and calls on a CPU: implemented in the modules below;
* operators SGLang looks up on `torch.ops.sgl_kernel`: listed in `TORCH_OPS`;
* everything else (CUDA kernels that are imported but never called): a placeholder that raises when called.

`torch.ops.sgl_kernel.convert_weight_packed` must stay undefined. SGLang takes its presence to mean that the
AMX kernels exist, and would then send linear, MoE and norm layers here instead of to native torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _placeholder
from .attention import decode_attention_cpu, extend_attention_cpu
from .cache_ops import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from .speculative import (
    build_tree_kernel_efficient_cpu,
    reconstruct_indices_from_tree_mask,
    verify_tree_greedy_cpu,
)
from .token_ops import fill_bonus_tokens_cpu, rotate_input_ids_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "reconstruct_indices_from_tree_mask",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# Plain callables hung on the namespace object rather than registered operators: SGLang only ever calls
# them, and going through torch's dispatcher would cost more than the tiny attention itself.
TORCH_OPS: dict[str, Callable[..., Any]] = {
    "decode_attention_cpu": decode_attention_cpu,
    "extend_attention_cpu": extend_attention_cpu,
}

for _name, _function in TORCH_OPS.items():
    setattr(torch.ops.sgl_kernel, _name, _function)

_placeholder.install(__name__)


def __getattr__(name: str) -> Callable[..., Any]:
    return _placeholder.attribute(__name__, name)
