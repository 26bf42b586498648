"""How the supervisor starts a child: ``python -m boathook.server _child ROLE``."""

import gc
import sys

if __name__ == "__main__":
    # Collecting while everything is imported finds nothing and takes a tenth of the time; see server/collector.
    gc.disable()
    from boathook.server.child import run_child

    if len(sys.argv) != 3 or sys.argv[1] != "_child":
        sys.exit("this module starts boathook's child processes; use: boathook serve")
    sys.exit(run_child(sys.argv[2]))
