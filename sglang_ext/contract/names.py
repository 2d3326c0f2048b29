"""Variable names: which a report may show, which look like a secret, which a contract may hold.

Tables first. A name that is in none of them is neither shown nor refused: a contract may require any variable
the user names (a future NCCL knob as well), a report shows only what is certainly about tuning.
"""

from __future__ import annotations

from sglang_ext.hide import HIDDEN, holds_credentials

# What steers kernels, communication, compilation and threads in an SGLang worker.
TUNING_PREFIXES = (
    "NCCL_", "RCCL_", "MSCCL_", "MSCCLPP_", "NVSHMEM_", "GLOO_", "UCX_", "DEEPEP_", "MORI_", "MOONCAKE_",
    "CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "CUTLASS_", "CUTE_DSL_", "NVIDIA_", "HIP_", "HSA_", "ROCM_",
    "SGLANG_", "SGL_", "VLLM_", "FLASHINFER_", "TRTLLM_", "DG_",
    "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_", "TILELANG_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_",
)  # fmt: skip
TUNING_NAMES = frozenset({"TOKENIZERS_PARALLELISM"})

# Ours, or upstream's random id of a launch: they differ by nature, comparing them says nothing about tuning.
NOT_TUNING_PREFIXES = ("SGLANG_EXT_",)
NOT_TUNING_NAMES = frozenset({"SGLANG_EXT", "SGLANG_RUN_ID"})

# What a node has of its own: the names of its interfaces and adapters, its topology, its identity. NCCL reads them per host.
NODE_LOCAL = frozenset({
    "NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_TOPO_FILE",
    "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_DEBUG_FILE",
})  # fmt: skip

SECRET_WORDS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL",
    "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY", "BEARER", "AUTHORIZATION",
)  # fmt: skip

# "TOKEN" is also what a language model emits. These phrases are taken out before the search for SECRET_WORDS;
# each is in a knob of sglang 0.5.23 srt/environ.py (SGLANG_SIMULATE_ACC_TOKEN_MODE,
# ..._MAX_DISPATCH_TOKENS_PER_RANK). A name that fits none stays a secret: the mistake then is a hidden knob,
# not a printed key.
HARMLESS_PHRASES = (
    "TOKENIZER", "TOKENIZE", "NEW_TOKEN_RATIO", "TOKEN_USAGE", "TOKEN_MODE", "TOKEN_IDS_ACROSS",
    "TOKEN_BLOCK", "TOKEN_ORACLE", "TOKEN_ASSERT", "TOKEN_SWAP", "TO_TOKEN_PROB", "PER_TOKEN",
    "TOKENS_PER_RANK", "MAX_TOKENS", "NEW_TOKENS", "CHUNK_TOKENS", "INPUT_TOKENS", "RECV_TOKENS",
    "THINK_TOKENS", "PREFILL_TOKENS", "QUERY_TOKENS", "DECODE_GRAPH_KEY",
)  # fmt: skip

_OURS = "the launcher sets it itself to deliver and prove the contract"
_AT_EXEC = "it is read when a process starts, so repairing it later would change nothing"
_BY_SHELLS = "shells and wrappers on the way to a worker set it for their own use"
# Names no contract may hold, and why.
RESERVED_NAMES = {
    "SGLANG_EXT": _OURS, "SPT_NOENV": _OURS,
    "LD_PRELOAD": _AT_EXEC, "LD_LIBRARY_PATH": _AT_EXEC, "LD_AUDIT": _AT_EXEC,
    "PYTHONPATH": _AT_EXEC, "PYTHONHOME": _AT_EXEC, "PYTHONSTARTUP": _AT_EXEC, "PYTHONSAFEPATH": _AT_EXEC,
    "PYTHONNOUSERSITE": _AT_EXEC, "PYTHONUSERBASE": _AT_EXEC, "PYTHONPLATLIBDIR": _AT_EXEC,
    "PYTHONEXECUTABLE": _AT_EXEC,
    "PATH": _BY_SHELLS, "HOME": _BY_SHELLS,
    "PWD": _BY_SHELLS, "OLDPWD": _BY_SHELLS, "SHLVL": _BY_SHELLS, "_": _BY_SHELLS,
}  # fmt: skip
RESERVED_PREFIXES = {"SGLANG_EXT_": _OURS}


def is_nccl(name: str) -> bool:
    """True for NCCL's own variables, the ones the shell contributes to a contract."""
    return name.startswith("NCCL_")


def looks_secret(name: str) -> bool:
    """True where the name suggests that its value is a secret; such values are never printed nor stored."""
    rest = name.upper()
    for phrase in HARMLESS_PHRASES:
        rest = rest.replace(phrase, "-")
    # In pieces, for a text that is no name: "TLS_KEY:abc", where someone forgot the equals sign.
    pieces = "".join(ch if ch.isalnum() or ch == "_" else " " for ch in rest).split()
    return any(p == "KEY" or p.endswith("_KEY") or any(word in p for word in SECRET_WORDS) for p in pieces)


def is_tuning(name: str) -> bool:
    """True for a variable that a report may show although the contract does not name it."""
    if name not in TUNING_NAMES and not name.startswith(TUNING_PREFIXES):
        return False  # first, as most variables of a worker are none: the search for secrets costs more
    return not (name in NOT_TUNING_NAMES or name.startswith(NOT_TUNING_PREFIXES) or looks_secret(name))


def is_name(name: str) -> bool:
    """True for what a shell can export: ASCII letters, digits and "_", not starting with a digit."""
    return name.isascii() and name.isidentifier()


def name_fault(name: str) -> str | None:
    """Why a contract may not hold this name (expected, found, fix: the end of a sentence), or None.

    The secret test comes first and shows only a well-formed name: another may have part of a value in it.
    """
    if looks_secret(name):
        shown = name if is_name(name) else "a name that is not shown"
        return (
            f"expected a name that holds no secret, as contracts are printed and stored, found {shown}, "
            "which looks like one; leave it to the launching shell, the workers inherit it from there"
        )
    if not is_name(name):
        return f'expected a variable name (letters, digits, "_"), found {name!r}; write it like NCCL_PROTO'
    reason = RESERVED_NAMES.get(name)
    for prefix, why in RESERVED_PREFIXES.items():
        if name.startswith(prefix):
            reason = why
    if reason is not None:
        return f"expected a variable that a contract can hold, found {name} ({reason}); leave it out"
    return None


def value_fault(value: str) -> str | None:
    """Why no contract can hold this value (the end of a sentence that does not repeat the value), or None."""
    if holds_credentials(value):
        return (
            "expected a value without a password in it, as contracts are printed and stored, found a URL that holds one; leave "
            "it to the launching shell, the workers inherit it from there"
        )
    if "\0" in value:
        return "expected a value that fits into an environment, found a NUL character in it; remove it"
    if "\n" in value or "\r" in value:
        return "expected a value of one line, found a line break in it; remove it"
    return None


def shown(value: str | None) -> str:
    """A value for a sentence: as it is, quoted where blanks or invisible characters would be missed."""
    if value is None:
        return "(absent)"
    if holds_credentials(value):
        return HIDDEN
    plain = value.isprintable() and value != "" and not any(ch.isspace() or ch in "\"'" for ch in value)
    return value if plain else repr(value)
