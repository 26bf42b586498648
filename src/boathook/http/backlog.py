"""Settings of a listening socket's backlog; separate from the server, which takes longer to import."""

import socket
from typing import Final

BACKLOG: Final = 2_048


def refuse_new_handshakes(bound: socket.socket) -> None:
    """Make the kernel drop connection attempts on *bound* while the backlog is still being accepted.

    Closing a listening socket resets every connection in its backlog, although its client believes it is connected.
    When SYN packets are dropped beforehand, nothing new can enter the backlog, so it can be emptied. A client that
    connects meanwhile retransmits a second later, as for any lost packet. Where the kernel has no such filter (it is
    Linux's SO_ATTACH_FILTER), a few connections may be reset on close.
    """
    import ctypes

    # Classic BPF over the TCP header: load the flags byte; drop if SYN is set, else pass.
    code = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
    packed = b"".join(op.to_bytes(2, "little") + bytes((yes, no)) + k.to_bytes(4, "little") for op, yes, no, k in code)
    instructions = ctypes.create_string_buffer(packed, len(packed))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(code), ctypes.addressof(instructions))
    try:
        bound.setsockopt(socket.SOL_SOCKET, 26, bytes(program))
    except OSError:
        return
