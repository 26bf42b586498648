"""Cells: several installations, each on a PostgreSQL of its own, that share sources and applications among them.

This module declares the package and imports none of it; docs/how-to/cells.md shows how to use it.

settings     [cells]; directory: the cell of each source
forwarding   posts events to other cells, and accepts theirs; gateway: what a gateway gets of it
app          passes messages on to the cells of their applications: one handler for each cell
elsewhere    what every other process asks; finder: which cell has an application
store        what PostgreSQL knows of cells; keys: copies dedup keys to another cell
moves        assigns and moves sources and applications; status: the state of all cells
spools       the spools of this host for events of other cells
commands     `boathook cells`; pages: the console's page; api: the API's answer 421; doctor: diagnosis
metrics      the metrics of all of these
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="cells",
    tables="boathook_cells.settings:TABLES",
    metrics="boathook_cells.metrics:METRICS",
    check="boathook_cells.settings:check",
    alert_rules="alert_rules.toml",
    prometheus_rules="alerts.yml",
    preload={"console": ("boathook_cells.elsewhere",)},
    app="boathook_cells.app:open_app",
    gateway="boathook_cells.gateway:open_part",
    elsewhere="boathook_cells.elsewhere:open_elsewhere",
    pages="boathook_cells.pages:open_pages",
    responses="boathook_cells.api:RESPONSES",
    data_folder="cells",
    spools="boathook_cells.spools:list_spools",
    doctor="boathook_cells.doctor:examine",
)
