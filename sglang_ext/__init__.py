"""sglang-ext: an SGLang deployment's environment as a contract, delivered, proven and stamped on every number.

Importing this package imports nothing else: it happens in every Python process that imports sglang.
"""

__version__ = "0.1.0"
