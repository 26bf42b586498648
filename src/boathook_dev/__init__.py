"""Commands for those who write handlers: a new project, a server that restarts, events at hand, the demo.

init       the files of a new project, which scaffold generates
dev        serves while handlers are written: developer runs the server and shows its log
listen     shows events as they are accepted, and forwards them to a local server: event_feed, forwarding
demo       runs the demo, if it is installed

`command_list` has the commands as the help lists them.
"""
