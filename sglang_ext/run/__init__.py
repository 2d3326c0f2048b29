"""The run: one launch, its directory, its processes, and what its workers attest. Everybody's leaf room."""
