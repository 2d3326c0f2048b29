"""Only what pyproject.toml cannot say: the ``.pth`` file goes to the top of site-packages, in a wheel and when editable.

setuptools has no setting for a file there (data_files are relative to the prefix), so its own commands carry it: in a
wheel beside the packages, and so in RECORD: pip installs it and pip removes it.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

PTH = "sglang_ext.pth"


class BuildWithPth(build_py):
    """build_py, and the hook's .pth beside the packages."""

    def run(self) -> None:
        super().run()
        self.copy_file(PTH, str(Path(self.build_lib, PTH)), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, PTH))]


class EditableWithPth(editable_wheel):
    """pip install -e: the wheel that only points here must arm the hook as well."""

    def _select_strategy(self, name: str, tag: str, build_lib: str):  # type: ignore[no-untyped-def]
        strategy = super()._select_strategy(name, tag, build_lib)
        call = type(strategy).__call__

        def with_pth(self, wheel, files, mapping):  # type: ignore[no-untyped-def]
            wheel.write(PTH, PTH)
            return call(self, wheel, files, mapping)

        strategy.__class__ = type("WithPth", (type(strategy),), {"__call__": with_pth})
        return strategy


setup(cmdclass={"build_py": BuildWithPth, "editable_wheel": EditableWithPth})
