"""The witnesses of one worker: exec, live, attested. Each says value, absent, or honestly why it cannot say.

exec      /proc/PID/environ: the block the process was started with. setproctitle overwrites it; then it says nothing.
live      the C environ in the process's memory, now.
attested  the worker itself: what it found at its first line (stored), and its getenv now (asked).
"""

from __future__ import annotations

import errno

from sglang_ext.contract.names import is_tuning
from sglang_ext.quick import Any, NamedTuple
from sglang_ext.run import attestation
from sglang_ext.run.directory import RunDirectory, RunError
from sglang_ext.run.process import inner_pid
from sglang_ext.verify.live import LiveEnviron, read_live

VALUE, ABSENT = "value", "absent"
SAYS = (VALUE, ABSENT)


class Reading(NamedTuple):
    """What one witness says of one variable."""

    state: str  # value absent clobbered denied gone not_read unavailable
    value: str | None = None
    detail: str = ""

    @property
    def says(self) -> bool:
        return self.state in SAYS


class Block(NamedTuple):
    """What one witness saw of a whole environment: ``state`` "ok" and the values, or why not.

    ``asked``: of a witness that answers for these names and every tuning variable only; of others it says nothing.
    """

    state: str  # ok clobbered denied gone not_read unavailable
    values: dict[str, str]
    detail: str = ""
    asked: frozenset[str] | None = None

    def reading(self, name: str) -> Reading:
        if self.state != "ok":
            return Reading(self.state, None, self.detail)
        if self.asked is not None and name not in self.asked and not is_tuning(name):
            return Reading("not_read", None, "the worker answers for its run's contract and tuning variables only")
        value = self.values.get(name)
        return Reading(ABSENT, None, self.detail) if value is None else Reading(VALUE, value, self.detail)


class Witnessed(NamedTuple):
    """All that is known of one worker."""

    exec: Block
    live: Block
    attested: Block  # the worker's answer, now
    record: dict[str, Any] | None  # its stored attestation
    record_fault: str  # why a stored record is there and not believed
    maps: bytes = b""  # its memory map, where it was read


def parse_exec(raw: bytes) -> Block:
    """Judge the bytes of /proc/PID/environ.

    setproctitle writes NULs over every string that lies in one piece with argv and leaves late entries standing (py-
    setproctitle 1.3.8 spt_status.c:171-235), or title text without any "=". So a block that is empty, or whose first
    item is no NAME=value, says nothing: not even what its remaining entries seem to say about what is missing.
    """
    first = raw.partition(b"\0")[0]
    if b"=" not in first[1:]:
        what = (
            "is empty"
            if not raw
            else f"starts with {len(raw) - len(raw.lstrip(bytes(1)))} NULs"
            if raw[0] == 0
            else "is title text"
        )
        return Block("clobbered", {}, f"/proc/PID/environ {what}: overwritten by setproctitle")
    values: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals:
            values.setdefault(name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape"))
    return Block("ok", values, "the block the process was started with")


def read_exec(pid: int) -> Block:
    """The exec-time environment of ``pid``."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return parse_exec(file.read())
    except OSError as error:
        return Block(*_why(error, pid))


def _why(error: OSError, pid: int) -> tuple[str, dict[str, str], str]:
    if error.errno in (errno.ENOENT, errno.ESRCH):
        return "gone", {}, "the process has ended"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "denied", {}, f"permission denied: {_hindrance(pid, attach=False)}"
    return "unavailable", {}, f"unreadable ({error.strerror})"


def read_now(pid: int) -> Block:
    """The live environment of ``pid``."""
    return _block(pid, read_live(pid))


def _block(pid: int, found: LiveEnviron) -> Block:
    if found.state == "denied":
        return Block("denied", {}, f"reading its memory is not permitted: {_hindrance(pid)}")
    return Block(found.state, found.values, found.detail)


def _hindrance(pid: int, *, attach: bool = True) -> str:
    from sglang_ext.verify.sight import why_not  # only where something is closed to us

    found = why_not(pid, attach=attach)
    return f"{found.sentence}; {found.remedy}"


def read_record(directory: RunDirectory | None, pid: int, start_time: int) -> tuple[dict[str, Any] | None, str]:
    """The stored attestation of exactly this process, or None and, where one is there all the same, what is wrong."""
    if directory is None:
        return None, ""
    try:
        record = directory.read(attestation.record_name(pid))
    except RunError as error:
        return None, str(error)
    if record is None:
        return None, ""
    if not attestation.is_record(record, pid, start_time):
        found = f"pid {record.get('pid')} start time {record.get('start_time')}"
        return None, (
            f"{attestation.record_name(pid)} is not of this process (another start time, or not our format): expected pid "
            f"{pid} start time {start_time}, found {found}"
        )
    return record, ""


def hear(call: attestation.Call | None, record: dict[str, Any] | None) -> tuple[Block, dict[str, Any] | None]:
    """What the worker itself answers, and its whole answer."""
    if call is None or record is None:
        if call is not None and call.connection is not None:
            call.connection.close()
        return Block("unavailable", {}, "the worker attests nothing: it is not of a run of ours"), None
    answer, why = attestation.hear(call)
    if answer is None:
        return Block("not_read", {}, why), None
    values = {str(name): str(value) for name, value in answer["values"].items() if value is not None}
    return Block("ok", values, "the worker's own getenv, now", frozenset(answer["values"])), answer


def is_told(record: dict[str, Any], answer: dict[str, Any] | None) -> bool:
    """Is the stored record the one the worker says it stored? True as well where it says nothing of it."""
    return answer is None or answer.get("record") in (None, attestation.digest(record))


def dial(directory: RunDirectory | None, pid: int) -> attestation.Call | None:
    """Have a worker of ours read its environment again; None where nobody is to be asked."""
    return None if directory is None else attestation.dial(directory, pid, inner=inner_pid(pid))


def look(
    directory: RunDirectory | None, pid: int, start_time: int, call: attestation.Call | None, *, ask: bool = True
) -> Witnessed:
    """Hear every witness of one worker, which was asked by `dial`. ``ask`` False: a helper, which does not answer."""
    own = inner_pid(pid) if directory is not None else pid  # its files are named by what it calls itself
    record, fault = read_record(directory, own, start_time)
    attested, answer = Block("unavailable", {}, "helpers attest nothing"), None
    started, found = read_exec(pid), read_live(pid)
    if ask:
        attested, answer = hear(call, record)
    if record is not None and not is_told(record, answer):
        record, fault = read_record(directory, own, start_time)  # it may have attested again meanwhile
        if record is not None and not is_told(record, answer):
            stored, told = attestation.digest(record), str((answer or {}).get("record"))
            record = None
            fault = (
                f"{attestation.record_name(own)} is not what this worker says it stored: expected sha256 {told[:12]}, found "
                f"{stored[:12]}; somebody edited it"
            )
    if attestation.IN_ITS_PLACE in attested.detail:
        record, fault = (
            None,
            f"{attestation.socket_name(own)}: expected the worker itself, found that {attested.detail}",
        )
    live = _block(pid, found)
    return Witnessed(exec=started, live=live, attested=attested, record=record, record_fault=fault, maps=found.maps)
