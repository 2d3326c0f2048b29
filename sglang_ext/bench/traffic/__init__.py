"""Requests and answers: sent, stamped, and made figures of."""
