"""Benches: taking a number, only where the contract is proven."""
