"""GPUs through nvidia-ml-py: for each field a value, or why there is none. Zero is never written for "unknown".

What is asked stands in `questions`. nvidia-ml-py is imported when a library is opened, not before. Each call into it lets go
of the interpreter lock, so a thread that asks does not hold up the one that takes the number.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang_ext.bench.machine import questions
from sglang_ext.bench.machine.questions import Question, Unreadable

Unknown = dict[str, str]  # field -> why it has no value
WHY = {
    "NotSupported": "this GPU or driver does not offer it",
    "NoPermission": "this user may not ask for it",
    "FunctionNotFound": "the driver's library is older and does not have it",
    "GpuIsLost": "the GPU does not answer any more",
    "Uninitialized": "the library was not opened",
}
NO_LIBRARY = {
    "LibraryNotFound": "libnvidia-ml.so.1 is not found: no NVIDIA driver is here, or it is not passed into this container",
    "DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NoPermission": "this user may not open /dev/nvidiactl",
    "LibRmVersionMismatch": "the driver in the kernel and libnvidia-ml.so.1 are of different releases; restart the machine",
}
VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t, in its order
SIGNS_OF_A_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidia[0-9]*")


class Holder(NamedTuple):
    """A process that holds a GPU. ``pid`` is the host's, also when asked in a container; ``memory`` may be unknown."""

    pid: int
    memory: int | None


class Gpu(NamedTuple):
    """A GPU of this machine, in NVML's order (by PCI bus, which need not be CUDA's)."""

    number: int
    handle: Any
    uuid: str | None
    name: str | None
    fault: str = ""  # why it has no handle


def has_driver(signs: Sequence[str] = SIGNS_OF_A_DRIVER) -> bool:
    """Is there an NVIDIA driver, whether or not we can ask it?"""
    return any(glob.glob(sign) for sign in signs)


def open_library() -> Library | str:
    """The library, ready to be asked; or why it is not. One sentence. Whoever opens it closes it."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    if not hasattr(module, "NVMLError"):  # other distributions put a module of this name there
        return "the installed pynvml is not NVIDIA's nvidia-ml-py: pip install nvidia-ml-py"
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        name = error_name(error)
        return f"{name}: {NO_LIBRARY.get(name, 'libnvidia-ml.so.1 cannot be used')}"
    return Library(module)


def error_name(error: Exception) -> str:
    """NVML's name for it, as NotSupported; an error too new for the binding keeps its number."""
    name = type(error).__name__
    if name == "NVMLError":
        return f"Error{getattr(error, 'value', '')}"
    return name.removeprefix("NVMLError_")


def reason(name: str, function: str) -> str:
    why = WHY.get(name)
    return f"{name}: {why} ({function})" if why else f"{name} ({function})"


class Library:
    """NVML, opened."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.whole = True  # may several field values be asked for at once?

    def close(self) -> None:
        try:
            self.module.nvmlShutdown()
        except self.module.NVMLError:
            pass  # it is gone with the driver: nothing is left to close

    def ask(self, functions: Iterable[str], *arguments: Any) -> Any:
        """The answer of the first function that gives one. Raises Unreadable."""
        why = ""
        for function in functions:
            call = getattr(self.module, function, None)
            if call is None:
                why = why or f"the installed nvidia-ml-py has no {function}"
                continue
            try:
                return call(*arguments)
            except self.module.NVMLError as error:
                why = why or reason(error_name(error), function)
            except Exception as error:  # a binding that does not fit its library costs this field, not the run
                why = why or f"nvidia-ml-py failed: {type(error).__name__} ({function})"
        raise Unreadable(why)

    def answer(self, question: Question, *handles: Any) -> Any:
        """Raises Unreadable."""
        return question.convert(self.ask(question.functions, *handles, *question.arguments))

    def read(self, table: Iterable[Question], unknown: Unknown, *handles: Any) -> dict[str, Any]:
        """Every field of ``table``: null where it has no value, which goes into ``unknown``."""
        found: dict[str, Any] = {}
        for question in table:
            try:
                found[question.field] = self.answer(question, *handles)
            except Unreadable as why:
                found[question.field] = None
                unknown.setdefault(question.field, str(why))
        return found

    def gpus(self) -> list[Gpu]:
        """Raises Unreadable when they cannot be counted; one that does not answer stays in the list without a handle."""
        found = []
        for index in range(self.ask(("nvmlDeviceGetCount",))):
            try:
                handle = self.ask(("nvmlDeviceGetHandleByIndex",), index)
            except Unreadable as why:
                found.append(Gpu(index, None, None, None, str(why)))
                continue
            facts = self.read(questions.STATIC[:2], {}, handle)
            found.append(Gpu(index, handle, facts["uuid"], facts["name"]))
        return found

    def fields(self, handle: Any, wanted: Sequence[int]) -> dict[int, int | Unreadable]:
        """Field values. One that the driver does not know may make it refuse them all: then each is asked for alone."""
        function = "nvmlDeviceGetFieldValues"
        if self.whole:
            try:
                values = self.ask((function,), handle, list(wanted))
                return {field: self._field(value) for field, value in zip(wanted, values, strict=True)}
            except Unreadable:
                self.whole = False
        found: dict[int, int | Unreadable] = {}
        for field in wanted:
            try:
                found[field] = self._field(self.ask((function,), handle, [field])[0])
            except Unreadable as why:
                found[field] = why
        return found

    def _field(self, value: Any) -> int | Unreadable:
        """Each has its own return code, and a type that says which member of the union holds it."""
        if value.nvmlReturn != 0:
            try:
                name = error_name(self.module.NVMLError(value.nvmlReturn))
            except Exception:  # its classes are made per known number; of an unknown one they raise what they please
                name = f"Error{value.nvmlReturn}"
            return Unreadable(reason(name, f"nvmlDeviceGetFieldValues {value.fieldId}"))
        if value.valueType >= len(VALUE_TYPES):
            return Unreadable(f"a type of value that is not known here (nvmlDeviceGetFieldValues {value.fieldId})")
        try:
            return questions.number(getattr(value.value, VALUE_TYPES[value.valueType]))
        except Unreadable as why:
            return why

    def sample(self, handle: Any, unknown: Unknown) -> tuple[dict[str, Any], dict[str, int | None]]:
        """(what it is like now, the times that only grow)."""
        found = self.read(questions.SAMPLES, unknown, handle)
        wanted = (questions.MEMORY_TEMPERATURE, *(time.field for time in questions.TIMES))
        values = self.fields(handle, wanted)
        heat = values[questions.MEMORY_TEMPERATURE]
        found["mem_temp_c"] = _value(heat, "mem_temp_c", unknown)
        times: dict[str, int | None] = {}
        for time in questions.TIMES:
            value = values[time.field]
            if isinstance(value, Unreadable) and time.policy is not None:
                try:
                    answer = self.ask((questions.VIOLATION,), handle, time.policy)
                    value = questions.number(answer.violationTime)
                except Unreadable:
                    pass  # the newer way's reason is the one to tell
            times[time.name] = _value(value, time.name, unknown)
        return found, times

    def holders(self, handle: Any) -> list[Holder]:
        """Processes that compute on it, those behind MPS too. Raises Unreadable when none of them can be listed."""
        found: dict[int, Holder] = {}
        faults: list[Unreadable] = []
        for functions in questions.PROCESSES:
            try:
                for one in self.ask(functions, handle):
                    memory = one.usedGpuMemory  # None: the driver does not say
                    found.setdefault(one.pid, Holder(one.pid, None if memory is None else int(memory)))
            except Unreadable as why:
                faults.append(why)
        if len(faults) == len(questions.PROCESSES):
            raise faults[0]
        return [found[pid] for pid in sorted(found)]

    def used_memory(self, handle: Any) -> int:
        """Bytes in use, without what the driver keeps for itself where it tells them apart. Raises Unreadable."""
        newest, oldest = questions.USED_MEMORY
        try:
            return int(self.answer(newest, handle))
        except Unreadable:
            return int(self.answer(oldest, handle))

    def static(self, gpu: Gpu, gpus: Iterable[Gpu], unknown: Unknown) -> dict[str, Any]:
        """What holds for the whole launch, and how this GPU reaches each of the others."""
        found = self.read(questions.STATIC, unknown, gpu.handle) | self.read(questions.SYSTEM, unknown)
        found["peers"] = {
            str(other.number): self._peer(gpu, other, unknown)
            for other in gpus
            if other.number != gpu.number and other.handle is not None
        }
        return found

    def _peer(self, one: Gpu, other: Gpu, unknown: Unknown) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        asked: list[tuple[str, str, tuple[int, ...], dict[int, str]]]
        asked = [("path", questions.TOPOLOGY, (), questions.PATHS)]
        asked += [
            (name, questions.P2P, (index,), questions.P2P_STATES) for name, index in questions.P2P_CAPABILITIES.items()
        ]
        for name, function, arguments, words in asked:
            try:
                value = self.ask((function,), one.handle, other.handle, *arguments)
                found[name] = words.get(value, f"unknown ({value})")
            except Unreadable as why:
                found[name] = None
                unknown.setdefault(f"peers.{name}", str(why))
        return found


def _value(value: int | Unreadable, name: str, unknown: Unknown) -> int | None:
    if isinstance(value, Unreadable):
        unknown.setdefault(name, str(value))
        return None
    return value


def selected(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves to a server; all of them where that cannot be told.

    NVML shows every GPU. Its order is that of the PCI bus; CUDA's own is "fastest first" unless CUDA_DEVICE_ORDER says
    otherwise, so a number names the same GPU in both only where that is set, or where all are of one model.
    """
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return list(gpus)
    alike = len({gpu.name for gpu in gpus}) == 1 and gpus[0].name is not None
    numbered = alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    found: list[Gpu] = []
    for word in filter(None, map(str.strip, given.split(","))):
        if word.startswith("GPU-"):
            named = [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.startswith(word)]
        elif word.isdigit() and numbered:
            named = [gpu for gpu in gpus if gpu.number == int(word)]
        elif word.startswith("-"):
            break  # as CUDA does: nothing from here on
        else:
            return list(gpus)  # a MIG slice, or a number that does not say which
        found += [gpu for gpu in named if gpu not in found]
    return found
