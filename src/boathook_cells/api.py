"""The API's answer to a request for an application of another cell."""

from typing import Final

from pydantic import Field

from boathook.api.errors import ErrorOut


class WrongCellOut(ErrorOut):
    """The application belongs to another cell."""

    cell: str = Field(examples=["c2"], description="The name of that cell.")
    url: str = Field(examples=["https://c2.hooks.example.com"], description="Its URL: send the request there.")


RESPONSES: Final = {"421": (WrongCellOut, "The application belongs to another cell; send the request there")}
"""The model and the description of the answer, by status."""
