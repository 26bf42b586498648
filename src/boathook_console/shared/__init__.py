"""What the console and the portal share.

site           their ASGI application: routing, security headers, static files, errors
rendering      makes their pages
context        what their requests have in common, and the registry of pages
application_pages   the pages of an application: endpoints, endpoint_lists, endpoint_forms, attempt_charts
"""
