"""Request models of the API: they check what a client sends, and turn it into the values that actions take.

The API, the console's forms and the import from Svix share them, so a value is valid in all of them or in none.
"""
