"""A bell that ends a thread's wait for sockets."""

import os
import threading


class Waker:
    """An eventfd(2) that any thread may ring, also when it is gone already."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """What to wait for; readable once rung."""
        self._is_gone = False

    def wake(self) -> None:
        """End the wait, or the next one."""
        with self._lock:
            if not self._is_gone:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Take note that it rang."""
        os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Give the descriptor back, whose number may soon be another file's."""
        with self._lock:
            self._is_gone = True
            os.close(self.descriptor)
