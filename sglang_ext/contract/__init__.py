"""The contract: which variables an SGLang deployment requires, decided once, and by whom.

A leaf room: standard library only, nothing else of sglang_ext. Nothing is imported here on purpose: workers and the
verifier take only the modules they need.

    model.py    what a contract is: terms, digest, differences
    decide.py   one made from flags, profile and shell, in that order
    profile.py  the TOML, read strictly; profiles/ holds the shipped ones
    names.py    which names may be shown, which look secret, which a contract may hold
    rules.py    the upstream arguments that would overwrite a contract
"""
