"""What apps get of a running boathook: their own paths on the gateway's port, and the actions of operators.

mounts      serves the ASGI applications that apps mount: mount_access authenticates callers, browser_access says which
            pages of other sites may call them
operations  `hook.operations`

`config.packages.PARTS` names both. How apps are declared is `boathook.handlers`.
"""
