"""Request models of the API: they validate input and convert it to the values that the service functions take.

The API, the console's forms and the import from Svix share them, so that all accept the same values.
"""
