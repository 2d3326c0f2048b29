"""For trees put on PYTHONPATH instead of installed: arm the hook, then run the sitecustomize this one hides.

    PYTHONPATH=CHECKOUT/sitecustomize python -m sglang_ext.launch ...

Python reads it at every start but under -E, -I and -S. It is never installed: a site-packages one is hidden by Debian's.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.realpath(__file__))
_RAN = "_sglang_ext_ran"  # the folders whose sitecustomize has run


def _arm() -> None:
    checkout = os.path.dirname(_here)
    if PathFinder.find_spec("sglang_ext") is None:
        sys.path.append(checkout)
    try:
        from sglang_ext.bootstrap import arm
    except Exception as error:  # a damaged file raises SyntaxError
        # A worker of ours without the hook is found and named by the verifier; any other Python must not suffer.
        if "SGLANG_EXT_RUN_ID" in os.environ:
            sys.stderr.write(f"sglang-ext: the hook cannot be armed: {error}; put {checkout} on PYTHONPATH\n")
        return
    arm()


def _chain() -> None:
    """Run the next sitecustomize on sys.path in our place: `import sitecustomize` then gives the user's module.

    The next one may be that of another checkout: it is told who has run, or the two would hand on to each other without end.
    """
    ran = {*globals().get(_RAN, ()), _here}
    rest = [entry for entry in sys.path if os.path.realpath(entry or ".") not in ran]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    setattr(module, _RAN, ran)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_arm()
_chain()
