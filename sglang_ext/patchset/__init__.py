"""Carry changes to upstream files as patches: parse, apply, reverse, know the state, pin by hash.

Nothing is imported here on purpose. The import hook runs in every worker process and takes only the modules
it needs, so the whole room keeps off `re`, `typing`, `dataclasses` and `pathlib`, and loads `hashlib`,
`tomllib`, `ast` and `difflib` where they are used.

    diff.py           one patch of one file: apply, reverse, state, make; also names model.py and parsing.py
    model.py          Patch, Hunk, PatchError and the canonical text
    parsing.py        the strict reader
    record.py         the base of our small immutable values
    header.py         what every patch must say about itself, and the seams it promises
    series.py         the patch set of a release, from `patches/series`: order, digest, apply all or none
    series_lint.py    what can be wrong with a series: unused, duplicate, overlapping
    lock.py           `patches/upstream.toml`: which wheels and which files we know, by sha256; plain_toml.py reads it
    overlay.py        patched copies on disk, for the import hook
    postcondition.py  where the seams ended up in the patched source, by `ast`
    file_check.py     one upstream file under its patches: compiled, seams, back again
    wheel_check.py    one upstream wheel, or an installed one, against all of the above
"""
