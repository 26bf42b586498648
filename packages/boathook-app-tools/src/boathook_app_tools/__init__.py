"""What the ready-made apps share.

table_import         imports an owner's existing tables
import_commands      the commands ``import`` and ``views`` of an app
compatibility_views  views and functions under the names that an owner's queries use
simulation           sends, waits and reports for simulators
terminal             database access and output of commands
"""
