"""The seams: what the patched places of upstream call. One module per patched file; upstream's hunks stay one line."""
