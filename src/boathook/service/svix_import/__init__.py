"""Imports an organization's set-up from a server of Svix's API: Svix itself, its open server, or another boathook.

reader    reads the API over HTTP
fields    turns what it answers into the values that actions take
importer  applies them through the actions
report    what was done, what is gone, what cannot move, what failed
"""
