"""Suites: what to ask, and of which servers; read strictly, and planned."""
