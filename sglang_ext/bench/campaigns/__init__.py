"""Campaigns: servers started, measured and ended, launch by launch, kept so that they can be resumed."""
