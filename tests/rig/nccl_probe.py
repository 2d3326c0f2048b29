"""Runs in a child process: load one libnccl and ask it. No GPU, no driver and no CUDA runtime are needed for what is asked.

    python tests/rig/nccl_probe.py LIBRARY < request.json > answer.json

The request is a list of questions, the answer a list as long:

    ["version"]                      ncclGetVersion -> 23007
    ["unique_id"]                    ncclGetUniqueId -> its return code; it reads the variables and starts the log
    ["environ", [NAME, ...]]         the C environment's values, null where there is none: what a conf file set shows here only
    ["integer", NAME, TEXT]          the variable's ncclParamX() -> the number (TEXT null: unset, so its default); null: unknown
    ["words", NAME, TEXT]            parseList -> [return code, [[0 or 1 per word] per function]]
    ["level", NAME, TEXT]            ncclGetLevel -> the level's number; -2: not taken
    ["disable", NAME, TEXT]          the same for NCCL_P2P_DISABLE
    ["policy", NAME, TEXT]           getEnvCtaPolicyOnce -> the flags; null: undefined
    ["tune", VARIABLES]              ncclTopoTuneModel with a communicator of zeros but two ranks, to have it write its log:
                                     it crashes soon after, so it runs in a child of its own -> that child's pid

The functions from "integer" on are not exported. Every wheel keeps its .symtab, so their addresses are those of an exported
function plus a difference of symbol values. This is for tests that compare; it breaks with any build, and says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import sys

UNREAD = -(2**63)  # INT64_MIN: NCCL_PARAM's "not read yet"
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT
FUNCTIONS = (b"Broadcast", b"Reduce", b"AllGather", b"ReduceScatter", b"AllReduce")
WORDS = {
    "NCCL_PROTO": (b"LL", b"LL128", b"Simple"),
    "NCCL_ALGO": (b"Tree", b"Ring", b"CollNetDirect", b"CollNetChain", b"NVLS", b"NVLSTree", b"PAT"),
}


def symbols(path: str) -> dict[str, int]:
    """Name -> value of the defined symbols in .symtab (System V gABI, chapter 4)."""
    with open(path, "rb") as stream:
        head = stream.read(64)
        (shoff,) = struct.unpack_from("<Q", head, 40)
        (count,) = struct.unpack_from("<H", head, 60)
        stream.seek(shoff)
        table = stream.read(64 * count)
        sections = [struct.unpack_from("<IIQQQQIIQQ", table, 64 * i) for i in range(count)]
        for section in sections:
            if section[1] == 2:  # SHT_SYMTAB
                stream.seek(section[4])
                entries = stream.read(section[5])
                strings = sections[section[6]]
                stream.seek(strings[4])
                names = stream.read(strings[5])
                return {
                    names[name : names.index(b"\0", name)].decode(): value
                    for name, _, _, where, value, _ in struct.iter_unpack("<IBBHQQ", entries)
                    if where and name
                }
    raise SystemExit(f"{path}: expected a .symtab, found none; take the wheel's own file")


class Probe:
    """One loaded library."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self._path = path
        self._symbols: dict[str, int] = {}
        self._base = 0

    def _address(self, *starts: str) -> int | None:
        """The address of the first symbol that starts like one of these, the shortest name first."""
        if not self._symbols:
            self._symbols = symbols(self._path)
            exported = ctypes.cast(self.library.ncclGetVersion, ctypes.c_void_p).value
            assert exported is not None
            self._base = exported - self._symbols["ncclGetVersion"]
        for start in starts:
            found = [name for name in self._symbols if name.startswith(start) and ".cold" not in name]
            if found:
                return self._base + self._symbols[min(found, key=len)]
        return None

    def _need(self, *starts: str) -> int:
        address = self._address(*starts)
        if address is None:
            raise LookupError(f"no symbol {starts[0]}*")
        return address

    def version(self) -> int:
        code = ctypes.c_int()
        assert self.library.ncclGetVersion(ctypes.byref(code)) == 0
        return code.value

    def unique_id(self) -> int:
        return int(self.library.ncclGetUniqueId(ctypes.create_string_buffer(128)))

    def environ(self, names: list[str]) -> list[str | None]:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        found = [getenv(os.fsencode(name)) for name in names]
        return [None if value is None else os.fsdecode(value) for value in found]

    def integer(self, name: str, text: str | None) -> int | None:
        parameter = PARAMETERS[name]
        mangled = f"{len('ncclParam' + parameter)}ncclParam{parameter}v"
        function, cache = self._address(f"_Z{mangled}"), self._address(f"_ZZ{mangled}E5cache")
        if function is None or cache is None:
            return None
        ctypes.c_int64.from_address(cache).value = UNREAD
        if text is not None:
            os.environ[name] = text
        return int(ctypes.CFUNCTYPE(ctypes.c_int64)(function)())

    def words(self, name: str, text: str) -> list[object]:
        words = WORDS[name]
        if name == "NCCL_ALGO" and self.version() < 22300:
            words = words[:-1]
        elements = (ctypes.c_char_p * len(words))(*words)
        functions = (ctypes.c_char_p * len(FUNCTIONS))(*FUNCTIONS)
        # 7 marks what was not written: "no change".
        table = (ctypes.c_int * (len(words) * len(FUNCTIONS)))(*[7] * (len(words) * len(FUNCTIONS)))
        raw = text.encode("utf-8", "surrogateescape")
        one_list = self._address("_Z9parseListPKcPS0_iPi", "_ZL9parseListPKcPS0_iPi")
        if one_list is not None:  # up to 2.23
            kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            code = kind(one_list)(raw, elements, len(words), table)
            return [code, [list(table[: len(words)])] * len(FUNCTIONS)]
        forced = (ctypes.c_int * len(FUNCTIONS))()
        if (short := self._address("_ZL9parseListPKcPKS0_iS2_iPiS3_.constprop")) is not None:
            # 2.31 on: it is called with the functions only, so the compiler took them out of its parameters.
            few = ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
            )
            code = few(short)(raw, elements, len(words), table, forced)
        else:
            all_of_them = ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_void_p,
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_int,
                ctypes.c_void_p,
            )
            address = self._need("_Z9parseListPKcPS0_iS1_iPi")
            code = all_of_them(address)(raw, functions, len(FUNCTIONS), elements, len(words), table)
        return [code, [list(table[i : i + len(words)]) for i in range(0, len(table), len(words))]]

    def level(self, name: str, text: str) -> int:
        return self._level(None, name, text)

    def disable(self, name: str, text: str) -> int:
        os.environ.pop("NCCL_P2P_LEVEL", None)
        return self._level(name, "NCCL_P2P_LEVEL", text)

    def _level(self, disable: str | None, name: str, text: str) -> int:
        os.environ[disable or name] = text
        level = ctypes.c_int(-1)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
        function = kind(self._need("_Z12ncclGetLevelPiPKcS1_"))
        assert function(ctypes.addressof(level), disable.encode() if disable else None, name.encode()) == 0
        return level.value

    def tune(self, variables: dict[str, str]) -> int | None:
        where = RANKS_AT.get(self.version())
        address = self._need("_Z17ncclTopoTuneModel")
        if where is None:
            return None
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.environ.update(variables)
            communicator = ctypes.create_string_buffer(1 << 22)
            ctypes.c_int.from_buffer(communicator, where).value = 2
            ctypes.c_int.from_buffer(communicator, where + NODES_AFTER_RANKS).value = 1
            graphs = [ctypes.create_string_buffer(1 << 16) for _ in range(8)]
            pointers = (ctypes.c_void_p * len(graphs))(*map(ctypes.addressof, graphs))
            kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
            kind(address)(ctypes.addressof(communicator), 80, 80, ctypes.addressof(pointers))
            os._exit(0)
        os.waitpid(pid, 0)
        return pid

    def policy(self, name: str, text: str) -> int | None:
        value = ctypes.c_int.from_address(self._need("_ZL12ctaPolicyEnv"))
        value.value = UNDEFINED
        os.environ[name] = text
        ctypes.CFUNCTYPE(None)(self._need("_ZL19getEnvCtaPolicyOncev"))()
        return None if value.value == UNDEFINED else value.value


# Where struct ncclComm has nRanks and nNodes: the first words that ncclTopoTuneModel compares with 1, x86_64.
RANKS_AT = {22707: 0x1044BC, 23007: 0x1206F4}
NODES_AFTER_RANKS = 0xB4

# How the source calls them: NCCL_PARAM(BuffSize, "BUFFSIZE", ...).
PARAMETERS = {
    "NCCL_BUFFSIZE": "BuffSize", "NCCL_MAX_NCHANNELS": "MaxNchannels", "NCCL_NTHREADS": "Nthreads",
    "NCCL_SHM_DISABLE": "ShmDisable", "NCCL_CROSS_NIC": "CrossNic", "NCCL_IB_TIMEOUT": "IbTimeout",
    "NCCL_CTA_POLICY": "CtaPolicy",
}  # fmt: skip


def main() -> int:
    """Answer what stdin asks."""
    probe = Probe(sys.argv[1])
    answers: list[object] = []
    for question, *arguments in json.load(sys.stdin):
        for variable in [n for n in os.environ if n.startswith("NCCL_") and n not in KEPT and question not in PUBLIC]:
            del os.environ[variable]
        answers.append(getattr(probe, question)(*arguments))
    json.dump(answers, sys.stdout)
    return 0


PUBLIC = ("version", "unique_id", "environ")
KEPT = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_CONF_FILE")

if __name__ == "__main__":
    sys.exit(main())
