"""Verification: which workers there are, what each of them holds, and what may be concluded from it."""
