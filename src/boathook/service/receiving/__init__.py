"""Operators' and API users' actions on what arrives: sources, their secrets, rejections, conflicts and the spool."""
