"""Carry the patch set from one upstream release to the next: what becomes of each patch, and landing all of it or nothing.

Used by tools/rebase_patches.py, never by a running server. Text that merged says nothing about meaning: what decides is
where the changed lines lie in the syntax tree (places.py) and where the seams are (postcondition.py).

    places.py   in which function, class and block each line of a module lies; what two versions of a file differ in
    merge.py    the three-way merge, by `git merge-file`
    seat.py     decorators and imports put where the syntax tree says, where a line merge cannot
    outcome.py  one patch: what it meets, and what becomes of it
    rules.py    what must hold of the patched file, whatever applied or merged
    states.py   what becomes of one patch in the new release: its state, and the text that carries it
    search.py   where a function went that is not where a patch needs it
    carry.py    all patches of a release, in order, file by file
    land.py     the new folder of patches, made beside the old one and put in its place in one step
    report.py   what happened, for a reviewer (markdown) and for scripts (JSON)
"""
