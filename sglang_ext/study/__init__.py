"""Understanding numbers: statistics, verdicts, economics. Pure: what was measured comes in, what it means comes out.

numpy and scipy are imported at the top here; so nobody imports this room before a bench verb needs it.
"""
