"""Code of the server's own that changes its environment later, as a plugin or model file may.

On PYTHONPATH together with RIG_MEDDLE: a thread in each spawned process waits for the file RIG_MEDDLE/PID, does what its
lines say (NAME=VALUE: set, NAME: delete) and removes it. With RIG_HOOKLESS the hook is switched off in them instead.
"""

import os
import sys
import threading
import time

_folder = os.environ.get("RIG_MEDDLE")


def _meddle() -> None:
    orders = os.path.join(str(_folder), str(os.getpid()))
    while True:
        time.sleep(0.05)
        if os.path.exists(orders):
            with open(orders) as file:
                for line in file.read().splitlines():
                    name, equals, value = line.partition("=")
                    if equals:
                        os.environ[name] = value
                    else:
                        os.environ.pop(name, None)
            os.unlink(orders)


if "--multiprocessing-fork" in sys.orig_argv:
    if "RIG_HOOKLESS" in os.environ:
        os.environ["SGLANG_EXT"] = "0"
    if _folder:
        threading.Thread(target=_meddle, daemon=True).start()
