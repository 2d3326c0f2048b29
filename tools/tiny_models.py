"""Write tiny random models that real SGLang serves on a CPU.

    python tools/tiny_models.py OUT [--only NAME ...] [--force]

OUT then holds, each in seconds and a few MiB:

    llama            4-layer LlamaForCausalLM
    deepseek         3-layer DeepseekV3ForCausalLM: MLA, mixture of experts, yarn rope, like the real one
    kimi             KimiK25ForConditionalGeneration around the same weights, for text only
    eagle3-llama     EAGLE-3 draft trained on `llama`'s own greedy text: nearly all it drafts is accepted
    eagle3-deepseek  EAGLE-3 draft with random weights, for `deepseek` and `kimi`: nearly nothing is accepted

A model that is there already, written by this very file, is kept. Seeds are fixed: the same versions of torch and transformers
write the same weights again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VOCAB, HIDDEN, INTERMEDIATE, POSITIONS = 512, 256, 512, 4096
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
ROPE_THETA, NORM_EPS = 10000.0, 1e-6
SPECIAL_IDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

CORPUS = "hello world the quick brown fox"
# The draft learns the target's continuation of exactly these, so far and so many steps deep; tests that want long accepts must
# ask for one. The first one is long enough for a benchmark: windows of 40 decode steps, three tokens each.
TRAINED_PROMPTS = {CORPUS: 520, "the quick": 100, "fox fox fox hello brown world 1234": 100}  # prompt -> tokens
TRAINED_STEPS = 3
MADE_BY = ".made-by"  # in each model: the sha256 of the file that wrote it

# Target layers whose hidden states a draft reads. Explicit, because SGLang's default layers may not exist in
# so shallow a target, and the draft's `fc` is then silently skipped.
LLAMA_AUX_LAYERS, DEEPSEEK_AUX_LAYERS = (0, 1, 2), (0, 1)

# SGLang wants a multimodal processor even where only text is served: the smallest one it accepts.
KIMI_PROCESSOR = """\
from transformers import AutoTokenizer, BaseImageProcessor, ProcessorMixin


class ImageProcessor(BaseImageProcessor):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.media_proc_cfg = {
            "patch_size": 14, "merge_kernel_size": 2, "in_patch_limit": 256, "patch_limit_on_one_side": 16,
            "fixed_output_tokens": None, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        }

    def media_tokens_calculator(self, media):
        return 1


class KimiProcessor(ProcessorMixin):
    attributes = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer=None, **kwargs):
        self.tokenizer = tokenizer
        self.image_processor = self.media_processor = ImageProcessor()
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, path, **kwargs):
        return cls(AutoTokenizer.from_pretrained(path))
"""


def _library(name: str) -> Any:
    """A library imported when it is first needed (`--help` is not to take seconds).

    Untyped on purpose, for transformers and tokenizers: their annotations are too partial to check against.
    """
    return import_module(name)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Fixed random numbers inside; the caller's generator is left as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def _single_thread() -> Iterator[None]:
    """Matrices this small are multiplied faster by one thread than handed to several."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write_tokenizer(out: Path) -> None:
    """A byte-level BPE that knows the corpus, so any text can be encoded and ids stay below VOCAB."""
    parts, transformers = _library("tokenizers"), _library("transformers")
    tokenizer = parts.Tokenizer(parts.models.BPE())
    tokenizer.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = parts.decoders.ByteLevel()
    trainer = parts.trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL_TOKENS.values()),
        show_progress=False,
        initial_alphabet=parts.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([CORPUS] * 10, trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(out)


def _save_random(architecture: str, config: Any, seed: int, out: Path) -> None:
    """Initialise a model of transformers at random and save it with a tokenizer."""
    with _seeded(seed):
        getattr(_library("transformers"), architecture)(config).save_pretrained(out)
    _write_tokenizer(out)


def _build_llama(out: Path, inputs: Mapping[str, Path]) -> None:
    config = _library("transformers").LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=4,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        max_position_embeddings=POSITIONS, **SPECIAL_IDS,
    )  # fmt: skip
    _save_random("LlamaForCausalLM", config, 1, out)


def _build_deepseek(out: Path, inputs: Mapping[str, Path]) -> None:
    config = _library("transformers").DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, moe_intermediate_size=128,
        num_hidden_layers=3, first_k_dense_replace=1, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        n_shared_experts=1, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        routed_scaling_factor=2.5, kv_lora_rank=64, q_lora_rank=96, qk_rope_head_dim=32, qk_nope_head_dim=64,
        v_head_dim=64, max_position_embeddings=POSITIONS, **SPECIAL_IDS,
    )  # fmt: skip
    _save_random("DeepseekV3ForCausalLM", config, 2, out)
    path = out / "config.json"
    written = json.loads(path.read_text())
    # SGLang reads the fields of the real checkpoints, which transformers no longer writes; its CPU rope
    # asserts that there is a rope_scaling block.
    written.pop("rope_parameters", None)
    written |= {
        "rope_theta": int(ROPE_THETA),
        "rope_scaling": {
            "type": "yarn", "factor": 2, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
            "beta_slow": 1, "original_max_position_embeddings": POSITIONS // 2,
        },
        "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
        "hidden_act": "silu", "ep_size": 1, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    _write_json(path, written)


def _build_kimi(out: Path, inputs: Mapping[str, Path]) -> None:
    from safetensors.torch import load_file, save_file

    deepseek = inputs["deepseek"]
    _write_tokenizer(out)
    weights = load_file(deepseek / "model.safetensors")
    # No vision weights: text never runs the tower, and SGLang leaves it as it was initialised.
    text = {f"language_model.{name}": tensor for name, tensor in weights.items()}
    save_file(text, out / "model.safetensors", metadata={"format": "pt"})
    auto_map = {"AutoProcessor": "kimi_processor.KimiProcessor"}
    _write_json(out / "config.json", {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "text_config": json.loads((deepseek / "config.json").read_text()),
        "vision_config": {
            "model_type": "kimi_k25", "patch_size": 14, "num_hidden_layers": 1, "num_attention_heads": 4,
            "hidden_size": 64, "intermediate_size": 128, "vt_num_hidden_layers": 1,
            "vt_num_attention_heads": 4, "vt_hidden_size": 64, "vt_intermediate_size": 128,
            "mm_hidden_size": 64, "text_hidden_size": HIDDEN, "init_pos_emb_height": 8,
            "init_pos_emb_width": 8,
        },
        "media_placeholder_token_id": 500, "dtype": "float32", "torch_dtype": "float32",
        "tie_word_embeddings": False, "auto_map": auto_map, **SPECIAL_IDS,
    })  # fmt: skip
    (out / "kimi_processor.py").write_text(KIMI_PROCESSOR)
    for name in ("processor_config.json", "preprocessor_config.json"):
        _write_json(out / name, {"processor_class": "KimiProcessor", "auto_map": auto_map})


def _draft_weights(aux_layers: Sequence[int]) -> dict[str, Tensor]:
    """Random matrices of an EAGLE-3 draft: one Llama layer over [token embedding, hidden state]."""
    import torch

    width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "midlayer.self_attn.q_proj": (width, 2 * HIDDEN),
        "midlayer.self_attn.k_proj": (kv_width, 2 * HIDDEN),
        "midlayer.self_attn.v_proj": (kv_width, 2 * HIDDEN),
        "midlayer.self_attn.o_proj": (HIDDEN, width),
        "midlayer.mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "midlayer.mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "midlayer.mlp.down_proj": (HIDDEN, INTERMEDIATE),
        "lm_head": (VOCAB, HIDDEN),
        "fc": (HIDDEN, len(aux_layers) * HIDDEN),
    }
    with _seeded(0):
        return {f"{name}.weight": torch.randn(*shape) * 0.02 for name, shape in shapes.items()}


def _save_draft(out: Path, weights: Mapping[str, Tensor], aux_layers: Sequence[int]) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    # The norms are not trained: _train_draft uses plain ones as well.
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"midlayer.{norm}.weight"] = torch.ones(HIDDEN)
    tensors["norm.weight"] = torch.ones(HIDDEN)
    # The draft's vocabulary is the target's: every token is in it (t2d) and none is renumbered (d2t).
    tensors["d2t"] = torch.zeros(VOCAB, dtype=torch.int64)
    tensors["t2d"] = torch.ones(VOCAB, dtype=torch.bool)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    _write_json(out / "config.json", {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "max_position_embeddings": POSITIONS, "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
        "dtype": "float32", "torch_dtype": "float32", **SPECIAL_IDS,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(aux_layers), "use_aux_hidden_state": True},
    })  # fmt: skip


def _train_draft(model_dir: Path, weights: dict[str, Tensor], steps: int = 150) -> dict[str, Tensor]:
    """Fit a draft to the target's own greedy text, unrolled over several drafted tokens as EAGLE-3 runs it."""
    import torch
    from torch.nn import functional

    transformers = _library("transformers")
    target = transformers.LlamaForCausalLM.from_pretrained(model_dir)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(model_dir)
    embedding = target.model.embed_tokens.weight.detach()
    trained: dict[str, Tensor] = {name: torch.nn.Parameter(tensor) for name, tensor in weights.items()}
    frequencies = ROPE_THETA ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, trained[f"{name}.weight"])

    def norm(x: Tensor) -> Tensor:
        return functional.rms_norm(x, (HIDDEN,), eps=NORM_EPS)

    def heads(x: Tensor, name: str) -> Tensor:  # [n, 2 * HIDDEN] -> [heads, n, HEAD_DIM]
        return linear(x, f"midlayer.self_attn.{name}_proj").view(len(x), -1, HEAD_DIM).transpose(0, 1)

    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None] * frequencies
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

    def layer(
        tokens: Tensor, hidden: Tensor, positions: Tensor, past: tuple[Tensor, Tensor] | None, mask: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """One drafting step at all positions: logits, the next step's hidden states, keys and values."""
        x = torch.cat([norm(embedding[tokens]), norm(hidden)], dim=-1)
        key, value = rotate(heads(x, "k"), positions), heads(x, "v")
        if past is not None:
            key, value = torch.cat([past[0], key], dim=1), torch.cat([past[1], value], dim=1)
        query = rotate(heads(x, "q"), positions)
        mixed = functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=mask, enable_gqa=True
        )
        hidden = hidden + linear(mixed[0].transpose(0, 1).flatten(1), "midlayer.self_attn.o_proj")
        x = norm(hidden)
        gated = functional.silu(linear(x, "midlayer.mlp.gate_proj")) * linear(x, "midlayer.mlp.up_proj")
        hidden = hidden + linear(gated, "midlayer.mlp.down_proj")
        return linear(norm(hidden), "lm_head"), hidden, (key, value)

    def loss(text: Tensor, features: Tensor) -> Tensor:
        """From position i's hidden state and token i+1 draft token i+2, and from that in turn token i+3, and so on."""
        count = len(text) - 1 - TRAINED_STEPS
        positions, own = torch.arange(count), torch.eye(count, dtype=torch.bool)
        mask = positions <= positions[:, None]
        hidden, cache, total = linear(features[:count], "fc"), None, torch.zeros(())
        for step in range(TRAINED_STEPS):
            tokens, wanted = text[1 + step :][:count], text[2 + step :][:count]
            logits, hidden, cache = layer(tokens, hidden, positions + step, cache, mask)
            # The next step sees what this one saw, and of its own keys only the one at the same place.
            mask = torch.cat([mask, own], dim=1)
            total = total + functional.cross_entropy(logits, wanted)
        return total

    def example(prompt: str, tokens: int) -> tuple[Tensor, Tensor]:
        """The target's text and, for each of its tokens, the hidden states the draft gets to see."""
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        text = target.generate(ids, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
        states = target(text, output_hidden_states=True).hidden_states
        return text[0], torch.cat([states[index + 1][0] for index in LLAMA_AUX_LAYERS], dim=-1)

    with torch.no_grad():
        examples = [example(prompt, tokens) for prompt, tokens in TRAINED_PROMPTS.items()]
    optimizer = torch.optim.Adam(trained.values(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        total: Any = torch.stack([loss(text, features) for text, features in examples]).sum()
        total.backward()
        optimizer.step()
    return trained


def _build_eagle3_llama(out: Path, inputs: Mapping[str, Path]) -> None:
    with _single_thread():
        weights = _train_draft(inputs["llama"], _draft_weights(LLAMA_AUX_LAYERS))
    _save_draft(out, weights, LLAMA_AUX_LAYERS)


def _build_eagle3_deepseek(out: Path, inputs: Mapping[str, Path]) -> None:
    _save_draft(out, _draft_weights(DEEPSEEK_AUX_LAYERS), DEEPSEEK_AUX_LAYERS)


@dataclass(frozen=True)
class Recipe:
    """How to write one model, and which others must be there first."""

    build: Callable[[Path, Mapping[str, Path]], None]
    needs: tuple[str, ...] = ()


RECIPES: Mapping[str, Recipe] = {
    "llama": Recipe(_build_llama),
    "deepseek": Recipe(_build_deepseek),
    "kimi": Recipe(_build_kimi, needs=("deepseek",)),
    "eagle3-llama": Recipe(_build_eagle3_llama, needs=("llama",)),
    "eagle3-deepseek": Recipe(_build_eagle3_deepseek),
}


def _resolve(names: Sequence[str]) -> list[str]:
    """The names and all they need, each once and after its own needs."""
    ordered: dict[str, None] = {}
    for name in names:
        if name not in RECIPES:
            raise ValueError(f"unknown model {name!r}; there are: {', '.join(RECIPES)}")
        ordered |= dict.fromkeys([*_resolve(RECIPES[name].needs), name])
    return list(ordered)


def _recipes() -> str:
    """What every model was made by: this file, whose change may change any of them."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _is_complete(model: Path) -> bool:
    try:
        made_by = (model / MADE_BY).read_text()
    except OSError:
        return False
    return made_by == _recipes() and (model / "config.json").is_file() and (model / "model.safetensors").is_file()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One maker per folder at a time: parallel test runs wait for the first instead of racing it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(model: Path, recipe: Recipe, inputs: Mapping[str, Path]) -> None:
    """Build beside the final place and rename, so that no one ever finds half a model there."""
    staging = model.with_name(f".{model.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)  # what a killed run left
    staging.mkdir()
    try:
        recipe.build(staging, inputs)
        (staging / MADE_BY).write_text(_recipes())
        shutil.rmtree(model, ignore_errors=True)
        staging.rename(model)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def make(
    out: Path,
    only: Sequence[str] | None = None,
    *,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Path]:
    """Have the models (default: all) and those they depend on in `out`; return the directory of each.

    `force` writes them anew even where they are complete. `report` gets one line per model.
    """
    names = _resolve(list(RECIPES) if only is None else only)
    models = {name: out / name for name in names}
    with _locked(out):
        for name, model in models.items():
            start = time.monotonic()
            if _is_complete(model) and not force:
                report(f"{name}: kept")
            else:
                _write(model, RECIPES[name], models)
                report(f"{name}: written in {time.monotonic() - start:.1f} s")
    return models


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write tiny random models that real SGLang serves on a CPU.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to put the models in")
    parser.add_argument(
        "--only", nargs="+", choices=RECIPES, metavar="NAME",
        help=f"write these and what they need; from: {', '.join(RECIPES)}",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="write models anew that are there already")
    options = parser.parse_args(arguments)
    # Read by transformers when it is imported; its bars would tear the lines printed here apart.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    make(options.out, options.only, force=options.force, report=lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
