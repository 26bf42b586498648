"""Pages for staff: cars and bookings with their timelines, found by id or number plate; the page of live changes."""

from typing import Any, Final

from starlette.responses import Response

from boathook_fleet import timeline
from boathook_fleet.app import FOLDER, gettext, hook, languages
from boathook_fleet.words import Entity
from boathook_pages import PageRequest, Pages, Refusal
from boathook_pages.languages import gettext_noop
from boathook_pages.sign_in import SignIn, User

PATH: Final = "/fleet/staff"
LIVE_PAGE: Final = "/api/rentprog/live/page"
ROLE: Final = "staff"
MAX_QUERY: Final = 200
WORDS: Final = {
    "car": gettext_noop("Car"),
    "booking": gettext_noop("Booking"),
    "create": gettext_noop("Created"),
    "update": gettext_noop("Changed"),
    "delete": gettext_noop("Deleted"),
    "number": gettext_noop("Number plate"),
    "model": gettext_noop("Model"),
    "vin": gettext_noop("VIN"),
    "state": gettext_noop("State"),
    "mileage": gettext_noop("Mileage"),
    "branch_id": gettext_noop("Branch"),
    "starts_at": gettext_noop("Starts"),
    "ends_at": gettext_noop("Ends"),
    "price": gettext_noop("Price"),
    "currency": gettext_noop("Currency"),
    "car_id": gettext_noop("Car"),
    "client_id": gettext_noop("Client"),
    "employee_id": gettext_noop("Employee"),
}
"""What columns, kinds of objects and changes are called on pages."""

sign_in: SignIn[User] = SignIn(hook, prefix="staff_", roles=(ROLE,))


pages = Pages(hook, PATH, title=gettext_noop("Fleet"), folder=FOLDER, languages=languages, sign_in=sign_in)
pages.nav("/", gettext_noop("Cars and bookings"), role=ROLE)
live = Pages(hook, LIVE_PAGE, title=gettext_noop("Fleet: live"), folder=FOLDER, languages=languages)


@pages.values
def words() -> dict[str, Any]:
    """Return the words for columns, objects and changes in the language of the page."""
    return {"words": {name: gettext(text) for name, text in WORDS.items()}}


@pages.get("/", role=ROLE)
async def search(request: PageRequest) -> Response:
    """Show the cars and bookings that were searched for, else those that were changed last."""
    text = request.query.get("q", "")[:MAX_QUERY].replace("\0", "")
    return request.page("search.html", query=text, rows=await timeline.search(request.tx, text))


@pages.get("/{entity}/{id}", role=ROLE)
async def show(request: PageRequest) -> Response:
    """Show a car or a booking with its timeline."""
    entity, id = request.path["entity"], request.path["id"]
    row = None
    if entity in timeline.SHOWN and "\0" not in id:
        row = await timeline.read_object(request.tx, Entity(entity), id)
    if row is None:
        raise Refusal(gettext("There is no such car or booking."), status=404)
    columns = timeline.columns(Entity(entity), row)
    return request.page("object.html", entity=entity, row=row, columns=columns)


@live.get("/", is_public=True)
async def show_live(request: PageRequest) -> Response:
    """Show the page of live changes, which holds no data."""
    return request.page("live.html")


pages.mount()
live.mount()
