"""Who listens on a port: the kernel's tables as data, and real sockets."""

from __future__ import annotations

import os
import socket

import pytest

from sglang_ext.run.listeners import listeners, parse_table
from tests.unit.stand_ins import stand_in

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0000 100 0 0 10 0
   1: 00000000:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 222 1 0000 100 0 0 10 0
   2: 0100007F:7530 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 333 1 0000 100 0 0 10 0
   3: 0100007F:C001 0100007F:7530 0A 00000000:00000000 00:00000000 00000000     0        0 444 1 0000 100 0 0 10 0
   4: torn
"""
TABLE6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 0 0 0 555
"""


def test_parse_table() -> None:
    assert parse_table(TABLE, 0x7530) == {"111", "222"}  # 333 is connected, 444 has the port at the other end
    assert parse_table(TABLE, 0xC001) == {"444"}
    assert parse_table(TABLE, 1) == set()
    assert parse_table(TABLE6, 0x7530) == {"555"}
    assert parse_table("", 0x7530) == set()


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = [(socket.AF_INET, "127.0.0.1"), *([(socket.AF_INET6, "::1")] if _has_ipv6() else [])]


@pytest.mark.parametrize(("family", "host"), HOSTS)
def test_listeners_of_a_real_socket(family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as server, stand_in() as other:
        port = server.getsockname()[1]
        assert listeners(port, [os.getpid(), other.pid, 2**22 + 1]) == {os.getpid()}
        assert listeners(port, [other.pid]) == set()
        assert listeners(other.port, [os.getpid(), other.pid]) == {other.pid}
    assert listeners(port, [os.getpid()]) == set()
