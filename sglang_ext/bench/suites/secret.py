"""Values that are secrets under any name: a suite is printed, and stored with its numbers."""

from __future__ import annotations

import json
import re

from sglang_ext.contract.names import looks_secret
from sglang_ext.hide import holds_credentials

# How tokens begin that are known by it: Hugging Face, OpenAI and alike, GitHub, GitLab, Slack, AWS. Whole words only: a
# folder may be called hf_models, so there is a digit or capital in it, and no path around it.
TOKEN = re.compile(
    r"(?<![\w/.-])(?:hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{16,}|gh[oprsu]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16})(?![\w/.-])"
)
EMITTED = re.compile(r"(bos|eos|pad|unk|sep|cls|mask|image|video|audio)_?token")  # tokens of a model


def secret_in(value: str) -> str | None:
    """What secret a value seems to hold, in words that do not repeat it; or None."""
    if holds_credentials(value):
        return "a URL that holds one"
    if TOKEN.search(value):
        return "what looks like an access token"
    if value.lstrip().startswith(("{", "[")):
        try:
            key = _secret_key(json.loads(value))
        except (ValueError, RecursionError):
            return None
        if key is not None:
            return f"JSON that has one under {key!r}"
    return None


def _secret_key(found: object) -> str | None:
    """The first key whose text is a secret by the key's name."""
    if isinstance(found, list):
        return next((key for one in found if (key := _secret_key(one)) is not None), None)
    if not isinstance(found, dict):
        return None
    for key, one in found.items():
        if isinstance(one, str) and one and _is_secret(key.lower()):
            return str(key)
        if (below := _secret_key(one)) is not None:
            return below
    return None


def _is_secret(key: str) -> bool:
    # "token" within a name is what a model emits; at its end it is one that lets somebody in.
    if looks_secret(key.replace("token", "-")):
        return True
    return key.endswith("token") and not EMITTED.fullmatch(key)
