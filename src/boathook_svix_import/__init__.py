"""Imports an organization's set-up from a server with Svix's API: Svix itself, its open-source server, or boathook.

reader    reads the API over HTTP
fields    converts its objects to the values that the service functions take
importer  applies them with the service functions
report    what was changed, deleted on the server, not portable, or failed
commands  `boathook import`, listed by command_list
"""
