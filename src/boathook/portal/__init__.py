"""The customers' portal: the pages of one application, opened by a link that the owner's app creates."""

from boathook.portal.app import portal_routes as portal_routes
