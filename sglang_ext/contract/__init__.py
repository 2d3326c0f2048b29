"""The contract: which variables an SGLang deployment requires, decided once, and by whom.

A leaf room: standard library only, nothing else of sglang_ext, nothing imported that a worker would have to
wait for. `model` says what a contract is, `decide` makes one from flags, profile and shell, `profile` reads
the TOML, `names` says which names may be shown, `rules` knows the upstream flags that would overwrite a
contract.
"""

from __future__ import annotations

from sglang_ext.contract.decide import decide
from sglang_ext.contract.model import Change, Contract, ContractError, Difference, Term
from sglang_ext.contract.names import is_nccl, is_tuning, looks_secret
from sglang_ext.contract.profile import MeasuredOn, Profile, ProfileError, load_profile, shipped_profiles
from sglang_ext.contract.rules import ALWAYS_SET, FIGHTS, SETTINGS, Fight, fights, flag_settings

__all__ = [
    "ALWAYS_SET",
    "FIGHTS",
    "SETTINGS",
    "Change",
    "Contract",
    "ContractError",
    "Difference",
    "Fight",
    "MeasuredOn",
    "Profile",
    "ProfileError",
    "Term",
    "decide",
    "fights",
    "flag_settings",
    "is_nccl",
    "is_tuning",
    "load_profile",
    "looks_secret",
    "shipped_profiles",
]
