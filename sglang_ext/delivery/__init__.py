"""Delivery: getting the contract into every process of a launch, and the launch into no other process."""
