"""Strips one worker of its environment on the way, as an `env -i` wrapper, sudo or a container entry point would.

On PYTHONPATH together with RIG_STRIP_NTH: the N-th process this one spawns by multiprocessing is started through ./python
here, which drops everything a process does not need to run at all. Upstream's own numactl wrapper works the same way.
"""

import os
import sys
from multiprocessing import util

_nth = int(os.environ.get("RIG_STRIP_NTH", "0")) if "sglang.launch_server" in sys.orig_argv else 0
_spawn = util.spawnv_passfds
_spawned = 0


def _stripping_spawn(path, arguments, handles):  # type: ignore[no-untyped-def]
    global _spawned
    if "--multiprocessing-fork" in arguments:
        _spawned += 1
        if _spawned == _nth:
            wrapper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python")
            return _spawn(wrapper.encode(), [wrapper, *arguments[1:]], handles)
    return _spawn(path, arguments, handles)


if _nth:
    util.spawnv_passfds = _stripping_spawn
