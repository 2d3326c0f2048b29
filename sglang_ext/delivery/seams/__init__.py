"""The seams: what the patched places of upstream call. One module per patched file; upstream's hunks stay one line."""

from __future__ import annotations

from sglang_ext import bootstrap

bootstrap.without_hook()  # whoever imports a seam is patched; a hook has said how by now, where there is one
