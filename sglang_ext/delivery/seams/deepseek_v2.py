"""The deepseek_v2 seam: what this model communicates per token, for probes and receipts. No collectives here: weight
daemons and draft models build it too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sglang_ext import bootstrap

SHAPE: dict[str, Any] | None = None  # of the first such model this process built: the target, not its draft


def communication_shape(config: Any) -> dict[str, Any]:
    """What one decoded token costs in collectives under plain tensor parallelism.

    One all-reduce after the vocabulary-parallel embedding, two per layer (attention output, MLP or MoE output), and one
    all-gather of the logits (sglang 0.5.23 deepseek_v2.py, DeepseekV2DecoderLayer.forward and LogitsProcessor). DP
    attention and fused or scattered forms need fewer or others: this is the plain form, not a measurement.
    """
    layers = int(config.num_hidden_layers)
    return {
        "architecture": (getattr(config, "architectures", None) or [type(config).__name__])[0],
        "hidden_size": int(config.hidden_size),
        "layers": layers,
        "all_reduces_per_token": 2 * layers + 1,
        "all_gathers_per_token": 1,
    }


def states_shape(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `DeepseekV2ForCausalLM.__init__`: note the shape once the model is built."""

    if bootstrap.switched_off():
        return init

    @functools.wraps(init)
    def wrapper(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        global SHAPE
        init(self, config, *args, **kwargs)
        if SHAPE is None:
            SHAPE = communication_shape(config)

    return wrapper
