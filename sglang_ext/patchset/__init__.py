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
    installed.py      which locked release the installed files are, by their bytes
    origin.py         which copy of sglang an import takes, what that one hides, who else claims it
    plan.py           what an import should find: copies of ours, or a tree that is patched already
    overlay.py        the copies, ready for the import hook; copies.py has their folder, seen.py spares a second look
    former.py         how the patch set got in at the last launch, and how it must
    local.py          the user's own patches: where they lie, which are in, what they add to the digest
    tree.py           an installed upstream and its RECORD; tree_status.py says what it is
    inplace.py        patch an installed tree in place and take that out; applied.py is what it leaves there
    journal.py        change files all or none, whatever ends the process
    adopt.py          hand edits of an installed tree into local patches; merge.py puts two changes together,
                      local_store.py names the patches and lists them
    wheels.py         upstream's locked wheels, from a file, the cache or pip; lock_check.py holds the lock against them
    baked.py          a wheel of upstream with the patch set in it
    wheel_zip.py      a zip archive with some entries changed, the others copied raw
    wheel_texts.py    _version.py, METADATA and RECORD for a local version
    rebase/           carry the patch set to another release (tools/rebase_patches.py)
    postcondition.py  where the seams ended up in the patched source, by `ast`
    file_check.py     one upstream file under its patches: compiled, seams, back again
    wheel_check.py    one upstream wheel, or an installed one, against all of the above
"""
